"""`preflight`: refuse ranks that differ, before the first step can corrupt anything.

It uses the store only, no collective: one meeting compares hashes (milliseconds); only when they
differ does each distinct rank publish its description, and a second meeting compares those.
"""

import operator
import os
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from puffrun.library.agreement.agree import sharing_errors
from puffrun.library.agreement.meeting import DEFAULT_TIMEOUT_S, Meetings, find_meetings
from puffrun.library.agreement.meeting_verdict import RefusedError
from puffrun.library.preflight.comparison import compare, find_not_different, find_notes, render
from puffrun.library.preflight.description import (
    Description,
    describe_training,
    list_facts,
    name_parameters,
)
from puffrun.library.preflight.rank_settings import describe_env, describe_world

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer


@dataclass(frozen=True)
class Checked:
    """What a preflight found of an optimizer: `id(parameter)` → names, and who holds the same."""

    names: Mapping[int, list[str]] = field(default_factory=dict)
    ranks: list[int] | None = None


_checked: "WeakKeyDictionary[Optimizer, Checked]" = WeakKeyDictionary()


def preflight(  # noqa: PLR0913  # each is a thing that people must be able to say
    model: "nn.Module | None" = None,
    optimizer: "Optimizer | None" = None,
    *,
    group: "ProcessGroup | Iterable[int] | None" = None,
    values: bool = True,
    same: Mapping[str, Any] | None = None,
    differ: Mapping[str, Any] | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> None:
    """Compare model, optimizer, code and settings across all ranks; reads only, changes nothing.

    `group`: the ranks that hold the same plain parameters (default: DDP's own group, else ranks
    with any parameter name in common; a DTensor's mesh says it by itself). `values=False` leaves
    out the checksum of parameters and buffers. `same` and `differ` are facts of your own, such as
    `same={"batch size": 64}, differ={"sampler seed": seed}`.

    Raises:
        DisagreementError: on every rank, also those outside the faulty mesh; says which rank
            differs, in which parameter, how.
    """
    meetings = find_meetings(timeout_s)
    if meetings is None:
        return
    with sharing_errors(meetings, "preflight", timeout_s):  # the others must not wait for it
        inner, ranks = _unwrap(model, group)
        names = name_parameters(inner, optimizer)
        mine = describe_training(inner, optimizer, names, ranks, values=values)
        mine = replace(
            mine,
            world=describe_world(meetings.world.size),
            env=describe_env(os.environ),
            same=list_facts("same", same),
            differ=list_facts("differ", differ),
        )
        brief = _brief(mine)
    notes = _check(meetings, "preflight", mine, brief, timeout_s)
    if optimizer is not None:
        _checked[optimizer] = Checked(names, ranks)
    if meetings.world.rank == 0:
        sys.stderr.writelines(f"puffrun: preflight: {note}\n" for note in notes)


def find_checked(optimizer: "Optimizer") -> Checked | None:
    """Return what a preflight found of this optimizer."""
    return _checked.get(optimizer)


def _unwrap(
    model: "nn.Module | None", group: "ProcessGroup | Iterable[int] | int | None"
) -> "tuple[nn.Module | None, list[int] | None]":
    """Look through DDP, which also says who the replicas are."""
    from torch.distributed import GroupMember, ProcessGroup, get_process_group_ranks
    from torch.nn.parallel import DistributedDataParallel

    if isinstance(model, DistributedDataParallel):
        group = model.process_group if group is None else group
        model = model.module
    if isinstance(group, ProcessGroup):
        return model, list(get_process_group_ranks(group))
    if group is None or isinstance(group, int):
        if group not in (None, GroupMember.NON_GROUP_MEMBER):  # what torch gives to outsiders
            raise TypeError(f"group has to be a process group or a list of ranks, not {group}")
        return model, None
    return model, [operator.index(rank) for rank in group]


def _check(
    meetings: Meetings, topic: str, mine: Description, value: dict[str, Any], timeout_s: float
) -> list[str]:
    """Hash first, details only on a difference. Returns what is worth a note.

    Raises:
        DisagreementError: the descriptions do not fit together.
    """
    publishers = meetings.meet(topic, value=value, decide=decide_briefs, timeout_s=timeout_s)
    if not publishers:
        return []
    keys = {digest: f"{topic}/{digest}" for digest in publishers}
    store = meetings.board.store
    if publishers[value["all"]] == meetings.world.rank:
        store.set(keys[value["all"]], zlib.compress(mine.to_json().encode()).hex())

    def decide(digests: dict[int, str]) -> list[str]:
        found = {d: Description.from_json(_unpack(store.get(key))) for d, key in keys.items()}
        return decide_descriptions({rank: found[digest] for rank, digest in digests.items()})

    try:
        result: list[str] = meetings.meet(
            topic, value=value["all"], decide=decide, timeout_s=timeout_s
        )
    finally:
        if publishers[value["all"]] == meetings.world.rank:
            store.delete_key(keys[value["all"]])
    return result


def _unpack(data: bytes) -> bytes:
    return zlib.decompress(bytes.fromhex(data.decode()))


def _brief(mine: Description) -> dict[str, Any]:
    """What is compared first: hashes, and whether something is wrong with this rank alone."""
    structure, everything = mine.digests()
    return {
        "all": everything,
        "structure": structure,
        "sums": _hash_sums(mine),
        "wrong": bool(mine.nameless or mine.duplicates),
        "differ": mine.differ,
    }


def _hash_sums(mine: Description) -> dict[str, int]:
    """Hash the values by what they are comparable with: the same part of the same tensors."""
    parts: dict[tuple[Any, str], list[str]] = {}
    for facts in (*mine.params, *mine.buffers):
        parts.setdefault((facts.scope, facts.shard), []).append(f"{facts.name} {facts.sum}")
    return {f"{part}": zlib.crc32("\n".join(lines).encode()) for part, lines in parts.items()}


def decide_briefs(briefs: dict[int, dict[str, Any]]) -> dict[str, int] | None:
    """Return None when all is well; else who publishes which description: digest → rank."""
    different = (
        len({brief["structure"] for brief in briefs.values()}) > 1
        or any(brief["wrong"] for brief in briefs.values())
        or _has_different_sums([brief["sums"] for brief in briefs.values()])
        or find_not_different({rank: brief["differ"] for rank, brief in briefs.items()})
    )
    if not different:
        return None
    return {brief["all"]: rank for rank, brief in sorted(briefs.items(), reverse=True)}


def _has_different_sums(all_sums: list[dict[str, int]]) -> bool:
    known: dict[str, int] = {}
    return any(known.setdefault(part, s) != s for sums in all_sums for part, s in sums.items())


def decide_descriptions(descriptions: dict[int, Description]) -> list[str]:
    """Compare everything; returns what is no mistake for sure, but worth a note.

    Raises:
        RefusedError: something is wrong.
    """
    findings = compare(descriptions)
    if findings:
        raise RefusedError(render(findings, descriptions))
    return find_notes(descriptions)
