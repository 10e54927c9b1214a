"""The hang verdict: a pure function from evidence to `Hang`.

Ranks that wait are grouped by what they wait in: the same members, sequence number, operation,
shapes and place. Whoever is waited for and does not wait is missing. Where all wait, but not in
the same, they disagree, and the fewer are the odd ones out. What is not known is said.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from puffrun.diagnose.doing import describe_doing
from puffrun.diagnose.hang_wording import conjugate, render_op, render_shapes
from puffrun.diagnose.waits import (
    Position,
    Wait,
    ends_with_exception,
    find_last_wait,
    find_position,
)
from puffrun.evidence.flight_records import Collective
from puffrun.evidence.rank_evidence import Fallen, RankEvidence
from puffrun.naming import name_ranks
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
    ended = {each.rank: each for each in fallen}
    gone = {
        rank: each
        for rank, each in ended.items()
        if rank not in known or ends_with_exception(known[rank])
    }
    positions = {rank: find_position(each, cwd, world_size) for rank, each in known.items()}
    waits = {rank: p.wait for rank, p in positions.items() if p.wait is not None}
    for rank, each in ended.items():
        if not each.is_victim or (rank in waits and waits[rank].place):
            continue
        wait = find_last_wait(each, cwd, world_size, known.get(rank))
        if wait is not None:
            waits[rank] = _like_another(wait, waits.values())
    case = _Case(known, positions, waits, gone, world_size)
    away = [rank for rank in {**known, **gone} if rank not in waits]
    culprits, text = _judge(case, sorted(away))
    return Hang(text, _waiting_rows(case), _missing_rows(case, sorted(away)), culprits)


def _like_another(wait: Wait, others: Iterable[Wait]) -> Wait:
    """Take a victim's wait for the one that a survivor at the same place is in."""
    if wait.seq is not None:
        return wait  # its own record has told
    for other in others:
        if (other.op, other.place) == (wait.op, wait.place):
            return Wait(**{**vars(other), "rank": wait.rank})
    return wait


# who is the odd one out


def _judge(case: _Case, away: Sequence[int]) -> tuple[tuple[int, ...], str]:
    if not case.waits:
        return (), "no rank is in a collective"
    past = _find_past_difference(case)
    if past is not None:
        return past
    awaited = [rank for rank in away if _is_awaited(rank, case)]
    if awaited:
        return _judge_missing(case, awaited)
    variants = _group(case.waits)
    if len(variants) > 1:
        return _judge_mismatch(case, variants)
    if away:
        return (
            (),
            f"{name_ranks(away)} {conjugate('is', away)} in no collective, and not waited for",
        )
    op = render_op(next(iter(case.waits.values())), case.world_size)
    return (), f"all ranks are in {op}: look at the network, or at a rank on another node"


def _judge_missing(case: _Case, awaited: Sequence[int]) -> tuple[tuple[int, ...], str]:
    waiting = sorted(case.waits)
    ops = {render_op(case.waits[rank], case.world_size) for rank in waiting}
    where = ops.pop() if len(ops) == 1 else "collectives"
    if len(awaited) <= len(waiting):
        wait = conjugate("waits", waiting)
        text = f"{name_ranks(waiting)} {wait} in {where} for {name_ranks(awaited)}"
        return tuple(awaited), text
    return tuple(waiting), f"{name_ranks(waiting)} alone {conjugate('is', waiting)} in {where}"


def _find_past_difference(case: _Case) -> tuple[tuple[int, ...], str] | None:
    """Find a collective that some still wait in and others left behind as another one.

    gloo lets a rank that expects less than it gets, or gets less than it expects, go on or hang.
    """
    for wait in case.waits.values():
        calls = _find_calls(case, wait)
        here = calls.pop(_call(wait), [])
        if any(not _is_in(rank, wait, case) for ranks in calls.values() for rank in ranks):
            there = " and ".join(f"{call} on {name_ranks(ranks)}" for call, ranks in calls.items())
            what = f"#{wait.seq} is {_call(wait)} on {name_ranks(here)}, but it was {there}"
            return _find_fewest([here, *calls.values()]), f"the ranks disagree: {what}"
    return None


def _find_calls(case: _Case, wait: Wait) -> dict[str, list[int]]:
    """Find what each rank called at the place of a wait in its group's sequence."""
    calls: dict[str, list[int]] = {}
    for rank in sorted({**case.evidence, **case.waits}):
        evidence = case.evidence.get(rank)
        found = _find_same(evidence, wait) if evidence else None
        same = case.waits[rank] if _is_in(rank, wait, case) else found
        if same is not None:
            calls.setdefault(_call(same), []).append(rank)
    return calls


def _is_in(rank: int, wait: Wait, case: _Case) -> bool:
    """Whether a rank waits at the same place of the same group's sequence."""
    own = case.waits.get(rank)
    return own is not None and (own.group, own.seq) == (wait.group, wait.seq)


def _find_fewest(parties: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Find the ranks outside the largest party, nobody where two are the largest."""
    most = max(map(len, parties))
    largest, *others = [party for party in parties if len(party) == most]
    if others:
        return ()
    return tuple(sorted(rank for party in parties if party is not largest for rank in party))


def _call(what: Wait | Collective) -> str:
    shapes = what.shapes if isinstance(what, Wait) else what.common_shapes
    return f"{what.op} of {render_shapes(shapes)}" if shapes else what.op


def _find_same(evidence: RankEvidence, wait: Wait) -> Collective | None:
    """Find what another rank had at the same place of the same group's sequence."""
    collectives = evidence.record.collectives if evidence.record else ()
    same = (c for c in collectives if (c.group, c.seq) == (wait.group, wait.seq) and not c.is_p2p)
    return next(same, None) if wait.seq is not None else None


def _judge_mismatch(
    case: _Case, variants: Mapping[Variant, list[int]]
) -> tuple[tuple[int, ...], str]:
    culprits = _find_fewest(list(variants.values()))
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
    if rank in case.fallen or evidence is None or evidence.record is None or wait.seq is None:
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
    firsts = [case.waits[ranks[0]] for ranks in variants.values()]
    calls = {(wait.op, wait.seq, wait.members) for wait in firsts}
    with_shapes = len({(w.op, w.seq, w.members, w.shapes) for w in firsts}) > len(calls)
    return tuple(
        Waiting(
            tuple(ranks),
            render_op(case.waits[ranks[0]], case.world_size, with_shapes=with_shapes),
            case.waits[ranks[0]].place,
        )
        for ranks in variants.values()
    )


def _missing_rows(case: _Case, away: Sequence[int]) -> tuple[Missing, ...]:
    rows: dict[tuple[str, str], list[int]] = {}
    for rank in away:
        rows.setdefault(_describe_away(rank, case), []).append(rank)
    return tuple(
        Missing(tuple(ranks), at, "\n".join(conjugate(line, ranks) for line in doing.split("\n")))
        for (at, doing), ranks in rows.items()
    )


def _describe_away(rank: int, case: _Case) -> tuple[str, str]:
    """Return where a rank is that does not wait, and what it does there."""
    if rank in case.fallen:
        return "", case.fallen[rank].how
    evidence, position = case.evidence[rank], case.positions[rank]
    if ends_with_exception(evidence):
        return "", "raises an exception"
    lines = [_describe_absence(evidence, position, case), describe_doing(evidence)]
    if not evidence.threads:
        lines.append(": ".join(["where in the program is not known", *evidence.notes[-1:]]))
    return position.place, "\n".join(line for line in lines if line)


def _describe_absence(evidence: RankEvidence, position: Position, case: _Case) -> str:
    if position.joined is not None:
        op = render_op(position.joined, case.world_size)
        return f"has begun {op} and not waited for it yet"
    if evidence.record is None and evidence.native.is_stopped:
        return ""
    if evidence.record is None:
        reason = evidence.journal.reason or "; ".join(evidence.notes)
        return f"its collectives are not known: {reason}" if case.waits else ""
    awaiting = [w for w in case.waits.values() if _is_awaited_in(evidence.rank, w, case)]
    several = len({(wait.members, wait.seq) for wait in awaiting}) > 1
    start = ("is in none of them; " if several else "is not in it; ") if awaiting else ""
    last = evidence.record.find_last(awaiting[0].group) if awaiting and not several else None
    last = last or evidence.record.find_last()
    if last is None:
        return f"{start}it has been in none yet" if case.waits else ""
    return f"{start}its last was {last.op} #{last.seq}"
