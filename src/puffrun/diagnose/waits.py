"""In which collective a rank waits, and where: from its records, stack, or last exception."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from puffrun.diagnose.places import is_raising, name_public_call, render_place, split_at_user
from puffrun.evidence.flight_records import Collective
from puffrun.evidence.rank_evidence import Fallen, RankEvidence
from puffrun.evidence.thread_stacks import ThreadStack, find_main
from puffrun.outcome import Frame

_DISTRIBUTED = re.compile(r"/torch/distributed/")
_COLLECTIVE = re.compile(r"/torch/(?:distributed|autograd|nn/parallel)/|/torch/_tensor\.py")
_WAIT_CALL = re.compile(r"\.(?:wait|item|cpu|tolist|synchronize|result|numpy)\(")
_WRAPPERS = ("wrapper", "inner", "_time_logger", "__call__", "wait", "decorate_context")


@dataclass(frozen=True)
class Wait:
    """One rank's wait. `seq` is None when only its stack told of it; `members` () when unknown."""

    rank: int
    op: str
    place: str
    members: tuple[int, ...] = ()
    group: str = ""
    seq: int | None = None
    backend: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Position:
    """Where one living rank is: `wait` if it waits with others, and where its own code stands.

    `joined` is a collective that it has enqueued without waiting for it (an asynchronous one).
    """

    rank: int
    place: str
    wait: Wait | None = None
    joined: Wait | None = None


def find_position(evidence: RankEvidence, cwd: Path, world_size: int) -> Position:
    """Conclude where a rank is from its evidence alone."""
    if ends_with_exception(evidence):
        return Position(evidence.rank, "")
    thread = _pick_thread(evidence.threads)
    called, user = split_at_user(thread.frames) if thread else ((), None)
    place = render_place(user, cwd)
    if evidence.native.is_stopped:  # wherever it is, it does not wait for the others
        return Position(evidence.rank, place)
    open_one = evidence.record.find_oldest_open() if evidence.record else None
    named = _name_operation(called)
    if open_one is not None:
        wait = _wait_in(open_one, evidence, place, world_size)
        if thread is None or _is_waiting(called, user, open_one.backend):
            return Position(evidence.rank, place, wait=wait)
        return Position(evidence.rank, place, joined=wait)
    if named:
        everybody = tuple(range(world_size))
        return Position(evidence.rank, place, wait=Wait(evidence.rank, named, place, everybody))
    return Position(evidence.rank, place)


def ends_with_exception(evidence: RankEvidence) -> bool:
    """Whether a rank was seen while its last exception was recorded: its place is gone."""
    main = find_main(evidence.threads)
    return main is not None and is_raising(main.frames)


def is_elsewhere(evidence: RankEvidence) -> bool:
    """Whether a rank's stack is known and shows that it waits in no collective."""
    position = find_position(evidence, Path(), 1)
    return bool(evidence.threads) and position.wait is None


def _is_waiting(called: Sequence[Frame], user: Frame | None, backend: str) -> bool:
    """Whether a thread with an open collective waits for it, and does not do something else.

    A wait on an asynchronous one (`work.wait()`, `loss.item()`) has no Python frame of its own, and
    on a GPU any line may be one.
    """
    if called or user is None:
        return user is None or _is_below(called, _COLLECTIVE)
    return backend == "nccl" or bool(_WAIT_CALL.search(user.code))


def find_last_wait(
    fallen: Fallen, cwd: Path, world_size: int, evidence: RankEvidence | None = None
) -> Wait | None:
    """Find the collective in which a victim's exception was raised.

    `evidence` is what was seen of the rank while it fell: its record knows the number.
    """
    called, user = split_at_user(tuple(reversed(fallen.frames)))
    named, place = _name_operation(called), render_place(user, cwd)
    if not named:
        return None
    open_one = evidence.record.find_oldest_open() if evidence and evidence.record else None
    if evidence is None or open_one is None or named.startswith("puffrun."):
        return Wait(fallen.rank, named, place)
    return _wait_in(open_one, evidence, place, world_size)


def _pick_thread(threads: tuple[ThreadStack, ...]) -> ThreadStack | None:
    """Pick the main thread; another only if that is in torch.distributed and the main is not."""
    main = find_main(threads)
    if main is not None and _is_below(split_at_user(main.frames)[0], _COLLECTIVE):
        return main
    others = [t for t in threads if _is_below(split_at_user(t.frames)[0], _DISTRIBUTED)]
    user_owned = [t for t in others if split_at_user(t.frames)[1] is not None]
    return user_owned[0] if user_owned else main


def _is_below(called: Sequence[Frame], pattern: re.Pattern[str]) -> bool:
    return any(pattern.search(frame.path) for frame in called)


def _name_operation(called: Sequence[Frame]) -> str:
    """Name what user code called: the outermost function of torch.distributed or of puffrun."""
    for frame in reversed(called):
        ours = name_public_call(frame)
        if ours:
            return ours
        if _DISTRIBUTED.search(frame.path) and frame.function not in _WRAPPERS:
            return frame.function
    return ""


def _wait_in(collective: Collective, evidence: RankEvidence, place: str, world_size: int) -> Wait:
    return Wait(
        rank=evidence.rank,
        op=collective.op,
        place=place,
        members=_members(collective.group, evidence.journal.groups, world_size),
        group=collective.group,
        seq=None if collective.is_p2p else collective.seq,
        backend=collective.backend,
        shapes=collective.common_shapes,
        dtypes=collective.dtypes,
    )


def _members(group: str, groups: Mapping[str, tuple[int, ...]], world_size: int) -> tuple[int, ...]:
    """Return a group's members, as global ranks; the default group's are all ranks."""
    if group in groups:
        return tuple(sorted(groups[group]))
    return tuple(range(world_size)) if group == "0" else ()
