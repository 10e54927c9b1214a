"""`guard`: the part of the preflight that can change with every step, before each step.

One collective of a few integers, on a gloo group of its own: it cannot pair with a collective of
the program, and on GPUs nothing has to wait for the device. Each set of ranks that holds
parameters together (a mesh, a group of replicas) has a slot; a rank fills the slots that it is
in, and all ranks see all slots, so that all of them raise.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

from puffrun.errors import DisagreementError
from puffrun.library.agreement.agree import sharing_errors
from puffrun.library.agreement.meeting import DEFAULT_TIMEOUT_S, Meetings, Told, find_meetings
from puffrun.library.agreement.meeting_verdict import RefusedError, group_ranks
from puffrun.library.preflight.comparison import Finding, render, some, tell_values
from puffrun.library.preflight.description import find_scope, list_hyperparameters
from puffrun.library.preflight.preflight import Checked, find_checked, preflight
from puffrun.naming import name_ranks

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

NOTHING = -(2**63)  # neutral for MAX: this rank is not in that slot
EXPLAIN_S = 3.0  # ranks whose collective failed meet within this time, or are missing
Scope = tuple[int, ...]
Share = dict[int, "list[tuple[str, Tensor]]"]  # parameters of one scope, by optimizer group

# The default group, and the guards' own beside it. Only torch holds them: a group that outlives
# `destroy_process_group` has threads that can abort Python's shutdown.
_groups: "list[tuple[ref[ProcessGroup], ref[ProcessGroup]]]" = []
_numbers = count(1)


def guard(
    optimizer: "Optimizer",
    model: "nn.Module | None" = None,
    *,
    group: "ProcessGroup | Iterable[int] | None" = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> "RemovableHandle | None":
    """Before each `optimizer.step()` compare gradient presence and hyperparameters of all ranks.

    Every rank calls it, after `init_process_group`; without a `preflight` of this optimizer before,
    it makes one. Returns torch's handle (`.remove()` takes the guard off), None when alone.

    Raises:
        DisagreementError: here as `preflight` does; later from `step()`, on every rank, before any
            parameter is changed. Also when a rank does not come to a step within `timeout_s`.
        RuntimeError: there is no process group.
    """
    meetings = find_meetings(timeout_s)
    if meetings is None:
        return None
    import torch.distributed as dist

    if not dist.is_initialized():
        raise RuntimeError("guard needs a process group: call `init_process_group` first")
    checked = find_checked(optimizer)
    if checked is None:
        preflight(model, optimizer, group=group, timeout_s=timeout_s)
        checked = find_checked(optimizer) or Checked()
    plain, slots = _agree_on_slots(meetings, optimizer, checked, timeout_s)
    watch = Guard(meetings, optimizer, checked, plain, slots, timeout_s)
    return optimizer.register_step_pre_hook(watch.check)


def _agree_on_slots(
    meetings: Meetings, optimizer: "Optimizer", checked: Checked, timeout_s: float
) -> tuple[Scope, list[Scope]]:
    """Return the ranks that share this rank's plain parameters, and the slots of the world."""
    with sharing_errors(meetings, "guard", timeout_s):
        shares = _find_shares(optimizer, checked.names, ())
        plain = [name for share in shares.get((), {}).values() for name, _ in share]
        mine: dict[str, Any] = {
            "meshes": [scope for scope in shares if scope],
            "plain": checked.ranks or sorted(plain) if plain else None,
        }
    result = meetings.meet("guard", value=mine, decide=decide_slots, timeout_s=timeout_s)
    own = result["plain"].get(str(meetings.world.rank), [])
    return tuple(own), [tuple(slot) for slot in result["slots"]]


def decide_slots(values: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Find all scopes: the meshes, and for plain parameters the ranks that named the same."""
    meshes = {tuple(mesh) for value in values.values() for mesh in value["meshes"]}
    named = {rank: value["plain"] for rank, value in values.items() if value["plain"]}
    plain = {rank: ranks for _, ranks in group_ranks(named) for rank in ranks}
    slots = meshes | {tuple(ranks) for ranks in plain.values()}
    return {"slots": sorted(slots), "plain": plain}


def _find_shares(
    optimizer: "Optimizer", names: Mapping[int, list[str]], plain: Scope
) -> dict[Scope, Share]:
    """Sort the optimizer's parameters by the ranks that hold them together."""
    shares: dict[Scope, Share] = {}
    for index, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            name = names.get(id(parameter), ["a parameter that was added later"])[0]
            share = shares.setdefault(find_scope(parameter) or plain, {})
            share.setdefault(index, []).append((name, parameter))
    for share in shares.values():
        for members in share.values():
            members.sort(key=lambda member: member[0])
    return shares


def _guard_group(timeout_s: float) -> "ref[ProcessGroup]":
    """Make one gloo group for all guards that a process group has."""
    import torch.distributed as dist

    world = dist.group.WORLD
    if world is None:
        raise RuntimeError("guard: there is no process group")
    if not _groups or _groups[0][0]() is not world:
        made = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))
        _groups[:] = [(ref(world), ref(made))]
    return _groups[0][1]


@dataclass
class Guard:
    """What one optimizer's hook remembers between steps."""

    meetings: Meetings
    optimizer: "Optimizer"
    checked: Checked
    plain: Scope
    slots: list[Scope]
    timeout_s: float
    number: int = field(default_factory=lambda: next(_numbers))
    step: int = 0
    _sizes: list[int] = field(default_factory=list)
    _shares: dict[Scope, Share] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the group now, while all ranks are here."""
        self._group = _guard_group(self.timeout_s)

    def check(self, optimizer: "Optimizer", _args: Any, _kwargs: Any) -> None:
        """Compare this step with the other ranks'; torch calls it before `step()`."""
        import torch
        import torch.distributed as dist

        self.step += 1
        self._look(optimizer)
        vector = torch.tensor(self._numbers(optimizer), dtype=torch.int64)
        started_s = time.monotonic()
        try:
            dist.all_reduce(vector, dist.ReduceOp.MAX, group=self._find_group())
        except RuntimeError as error:  # a rank did not come, or is gone
            self._explain(error, time.monotonic() - started_s)
            raise
        highs = vector.tolist()
        pairs = zip(highs[::2], highs[1::2], strict=True)
        if any(high not in (~low, NOTHING) for high, low in pairs):
            self._explain(None, 0.0)

    def _find_group(self) -> "ProcessGroup":
        group = self._group()
        if group is None:
            raise RuntimeError("guard: its process group was destroyed; call `guard` again")
        return group

    def _look(self, optimizer: "Optimizer") -> None:
        """Sort the parameters again when some were added."""
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        if sizes != self._sizes:
            self._sizes = sizes
            self._shares = _find_shares(optimizer, self.checked.names, self.plain)

    def _numbers(self, optimizer: "Optimizer") -> list[int]:
        """A hash of which step this is, then one a slot; each with its complement.

        MAX over (h, ~h) is the same pair on all ranks iff all had the same h.
        """
        hyper = [repr(list_hyperparameters(group)).encode() for group in optimizer.param_groups]
        strangers = sorted(self._shares.keys() - set(self.slots))
        hashes = [_hash(f"{self.number} {self.step} {strangers}".encode())]
        for slot in self.slots:
            share = self._shares.get(slot)
            hashes.append(NOTHING if share is None else _hash_share(share, hyper))
        return [n for h in hashes for n in ((h, NOTHING) if h == NOTHING else (h, ~h))]

    def _explain(self, error: RuntimeError | None, waited_s: float) -> None:
        """Meet the other ranks to find out what differs.

        Raises:
            DisagreementError: with what differs, or who did not come.
        """
        mine = {
            "step": [self.number, self.step],
            "shares": {json.dumps(scope): _tell(share) for scope, share in self._shares.items()},
            "groups": [list_hyperparameters(group) for group in self.optimizer.param_groups],
        }
        limit_s = EXPLAIN_S if error else self.timeout_s
        told = Told(f"guard, at step {self.step}", round(waited_s, 1)) if error else None
        try:
            self.meetings.meet(
                "guard", value=mine, decide=decide_step, timeout_s=limit_s, told=told
            )
        except DisagreementError as disagreement:
            raise disagreement from error


def _hash(data: bytes) -> int:
    """Hash to 62 bits: neither it nor its complement is `NOTHING`."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 2


def _hash_share(share: Share, hyper: list[bytes]) -> int:
    parts = []
    for index, members in share.items():
        parts += [hyper[index], bytes([tensor.grad is not None for _, tensor in members])]
    return _hash(b"|".join(parts))


def _tell(share: Share) -> dict[str, list[str]]:
    """Name the parameters without a gradient, by optimizer group."""
    return {
        str(index): [name for name, tensor in members if tensor.grad is None]
        for index, members in share.items()
    }


def decide_step(values: dict[int, dict[str, Any]]) -> None:
    """Compare what the ranks are about to do.

    Raises:
        RefusedError: it is not the same.
    """
    steps = {rank: value["step"] for rank, value in values.items()}
    findings = _compare_steps(steps) or [
        finding
        for scope in sorted({scope for value in values.values() for scope in value["shares"]})
        for finding in _compare_scope(scope, values)
    ]
    if findings:
        step = next(iter(steps.values()))[1]
        raise RefusedError(render(list(dict.fromkeys(findings)), values, at=f"step {step}"))


def _compare_steps(steps: dict[int, list[int]]) -> list[Finding]:
    if len(group_ranks(steps)) == 1:
        return []
    told, ranks = tell_values({r: f"{step} of optimizer {n}" for r, (n, step) in steps.items()})
    return [Finding("step", told, ranks)]


def _compare_scope(scope: str, values: dict[int, dict[str, Any]]) -> list[Finding]:
    shares = {r: value["shares"][scope] for r, value in values.items() if scope in value["shares"]}
    findings = []
    for index in sorted({index for share in shares.values() for index in share}, key=int):
        holders = {rank: share[index] for rank, share in shares.items() if index in share}
        findings += _compare_gradients(holders)
        groups = {rank: values[rank]["groups"][int(index)] for rank in holders}
        for key in sorted({key for group in groups.values() for key in group}):
            here = {rank: group.get(key) for rank, group in groups.items()}
            if len(group_ranks(here)) > 1:
                told, ranks = tell_values(here)
                findings.append(Finding(key, f"{told} (optimizer group {index})", ranks))
    return findings


def _compare_gradients(absent: dict[int, list[str]]) -> list[Finding]:
    """`absent`: rank → the names of parameters that have no gradient there."""
    by_ranks: dict[tuple[int, ...], list[str]] = {}
    for name in sorted({name for names in absent.values() for name in names}):
        without = tuple(rank for rank, names in absent.items() if name in names)
        if len(without) < len(absent):
            by_ranks.setdefault(without, []).append(f"`{name}`")
    findings = []
    for without, names in by_ranks.items():
        others = [rank for rank in absent if rank not in without]
        odd = min(without, tuple(others), key=lambda ranks: (len(ranks), -ranks[0]))
        text = f"{some(names)} none on {name_ranks(without)}, there on {name_ranks(others)}"
        findings.append(Finding("gradient", text, odd))
    return findings
