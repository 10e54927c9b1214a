"""The hang verdict: a pure function from evidence to `Hang`.

Ranks that wait are grouped by what they wait in: the same members, sequence number, operation,
shapes and place. Whoever is waited for and does not wait is missing. Where all wait, but not in
the same, they disagree, and the fewer are the odd ones out. What is not known is said.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from puffrun.diagnose.doing import describe_doing
from puffrun.diagnose.evidence import Fallen, RankEvidence
from puffrun.diagnose.waits import Position, Wait, find_last_wait, find_position
from puffrun.outcome import Hang, Missing, Waiting

Variant = tuple[str, int | None, tuple[int, ...], str, tuple[object, ...], str]


@dataclass(frozen=True)
class _Case:
    """Everything that the verdict is made from."""

    evidence: Mapping[int, RankEvidence]
    positions: Mapping[int, Position]
    waits: Mapping[int, Wait]
    fallen: Mapping[int, Fallen]
    world_size: int


def conclude_hang(
    evidence: Iterable[RankEvidence],
    *,
    world_size: int,
    cwd: Path,
    fallen: Iterable[Fallen] = (),
) -> Hang:
    """Say who waits where, who is missing, and what they do instead."""
    known = {each.rank: each for each in evidence}
    gone = {each.rank: each for each in fallen if each.rank not in known}
    positions = {rank: find_position(each, cwd, world_size) for rank, each in known.items()}
    waits = {rank: p.wait for rank, p in positions.items() if p.wait is not None}
    for rank, each in gone.items():
        wait = find_last_wait(each, cwd) if each.is_victim else None
        if wait is not None:
            waits[rank] = _like_another(wait, waits.values())
    case = _Case(known, positions, waits, gone, world_size)
    away = [rank for rank in (*known, *gone) if rank not in waits]
    culprits, text = _judge(case, sorted(away))
    return Hang(text, _waiting_rows(case), _missing_rows(case, sorted(away)), culprits)


def _like_another(wait: Wait, others: Iterable[Wait]) -> Wait:
    """Take a victim's wait for the one that a survivor at the same place is in."""
    for other in others:
        if (other.op, other.place) == (wait.op, wait.place):
            return Wait(**{**vars(other), "rank": wait.rank})
    return wait


# who is the odd one out


def _judge(case: _Case, away: Sequence[int]) -> tuple[tuple[int, ...], str]:
    if not case.waits:
        return (), "no rank is in a collective"
    awaited = [rank for rank in away if _is_awaited(rank, case)]
    if awaited:
        return _judge_missing(case, awaited)
    variants = _group(case.waits)
    if len(variants) > 1:
        return _judge_mismatch(case, variants)
    if away:
        return (), f"{_names(away)} {_be(away)} in no collective, and nobody waits for {_it(away)}"
    op = _render_op(next(iter(case.waits.values())), case.world_size)
    return (), f"all ranks are in {op}: look at the network, or at a rank on another node"


def _judge_missing(case: _Case, awaited: Sequence[int]) -> tuple[tuple[int, ...], str]:
    waiting = sorted(case.waits)
    ops = {_render_op(case.waits[rank], case.world_size) for rank in waiting}
    where = ops.pop() if len(ops) == 1 else "collectives"
    if len(awaited) <= len(waiting):
        return tuple(
            awaited
        ), f"{_names(waiting)} wait{_s(waiting)} in {where} for {_names(awaited)}"
    return tuple(waiting), f"{_names(waiting)} alone {_be(waiting)} in {where}"


def _judge_mismatch(
    case: _Case, variants: Mapping[Variant, list[int]]
) -> tuple[tuple[int, ...], str]:
    most = max(len(ranks) for ranks in variants.values())
    largest = [ranks for ranks in variants.values() if len(ranks) == most]
    odd = sorted(r for ranks in variants.values() for r in ranks if ranks is not largest[0])
    culprits = tuple(odd) if len(largest) == 1 else ()
    return culprits, f"the ranks disagree: {_describe_difference(case, variants)}"


def _describe_difference(case: _Case, variants: Mapping[Variant, list[int]]) -> str:
    firsts = [case.waits[ranks[0]] for ranks in variants.values()]
    for what, values in (
        ("in different process groups", {wait.members for wait in firsts}),
        ("at different operations", {(wait.op, wait.seq) for wait in firsts}),
        ("with different shapes", {wait.shapes for wait in firsts}),
        ("with different types", {wait.dtypes for wait in firsts}),
    ):
        if len(values) > 1:
            return f"they wait {what}"
    return "they wait in the same operation, called at different places"


def _is_awaited(rank: int, case: _Case) -> bool:
    """Whether somebody waits in a collective that this rank belongs to and has not come to."""
    return any(_is_awaited_in(rank, wait, case) for wait in case.waits.values())


def _is_awaited_in(rank: int, wait: Wait, case: _Case) -> bool:
    if wait.members and rank not in wait.members:
        return False
    evidence = case.evidence.get(rank)
    if evidence is None or evidence.record is None or wait.seq is None:
        return True
    return evidence.record.enqueued.get(wait.group, 0) < wait.seq


# the rows


def _group(waits: Mapping[int, Wait]) -> dict[Variant, list[int]]:
    """Put ranks together that wait in the same: fewest ranks last."""
    groups: dict[Variant, list[int]] = {}
    for rank in sorted(waits):
        wait = waits[rank]
        key = (
            wait.op,
            wait.seq,
            wait.members,
            wait.backend,
            (wait.shapes, wait.dtypes),
            wait.place,
        )
        groups.setdefault(key, []).append(rank)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _waiting_rows(case: _Case) -> tuple[Waiting, ...]:
    variants = _group(case.waits)
    with_shapes = len({case.waits[ranks[0]].shapes for ranks in variants.values()}) > 1
    return tuple(
        Waiting(
            tuple(ranks),
            _render_op(case.waits[ranks[0]], case.world_size, with_shapes=with_shapes),
            case.waits[ranks[0]].place,
        )
        for ranks in variants.values()
    )


def _missing_rows(case: _Case, away: Sequence[int]) -> tuple[Missing, ...]:
    rows: dict[tuple[str, str], list[int]] = {}
    for rank in away:
        rows.setdefault(_describe_away(rank, case), []).append(rank)
    return tuple(Missing(tuple(ranks), at, doing) for (at, doing), ranks in rows.items())


def _describe_away(rank: int, case: _Case) -> tuple[str, str]:
    """Return where a rank is that does not wait, and what it does there."""
    if rank in case.fallen:
        return "", case.fallen[rank].how
    evidence, position = case.evidence[rank], case.positions[rank]
    lines = [_describe_absence(evidence, position, case), describe_doing(evidence)]
    if not evidence.threads:
        lines.append(f"where in the program is not known: {'; '.join(evidence.notes)}")
    return position.place, "\n".join(line for line in lines if line)


def _describe_absence(evidence: RankEvidence, position: Position, case: _Case) -> str:
    if position.joined is not None:
        op = _render_op(position.joined, case.world_size)
        return f"has begun {op} and not waited for it yet"
    if evidence.record is None:
        reason = evidence.journal.reason or "; ".join(evidence.notes)
        return f"its collectives are not known: {reason}" if case.waits else ""
    awaiting = next(
        (w for w in case.waits.values() if _is_awaited_in(evidence.rank, w, case)), None
    )
    last = evidence.record.find_last(awaiting.group if awaiting else None)
    start = "is not in it; " if awaiting else ""
    if last is None:
        return f"{start}it has been in none yet" if case.waits else ""
    return f"{start}its last was {last.op} #{last.seq}"


def _render_op(wait: Wait, world_size: int, *, with_shapes: bool = False) -> str:
    """Render `all_reduce #5 of [4] (gloo, all ranks)`; what is not known is left out."""
    number = "" if wait.seq is None else f" #{wait.seq}"
    sizes = ", ".join(f"[{', '.join(map(str, shape))}]" for shape in wait.shapes)
    shapes = f" of {sizes}" if with_shapes and sizes else ""
    who = ""
    if wait.members:
        is_all = len(wait.members) == world_size
        who = "all ranks" if is_all else f"group of {_names(wait.members)}"
    about = ", ".join(part for part in (wait.backend, who if wait.seq is not None else "") if part)
    return f"{wait.op}{number}{shapes}" + (f" ({about})" if about else "")


def _names(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")  # noqa: PLR2004
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _be(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _s(ranks: Sequence[int]) -> str:
    return "s" if len(ranks) == 1 else ""


def _it(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"
