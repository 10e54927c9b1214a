"""The end of a run, concluded from everything that was seen: not a minimum of timestamps.

The order: an exception that is not a victim's; a signal that we did not send; an exit code; a
disagreement that the ranks found themselves; a rank that left early with 0; then what the
watchdog itself concluded; and only then the victims, whose error merely says that another rank
went away.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from puffrun.naming import describe_exit, name_ranks, signal_name
from puffrun.outcome import Cause, ErrorRecord, Hang, OutcomeKind
from puffrun.watch.blame import (
    blame_key,
    describe_failure,
    disagrees,
    exit_code_of,
    find_culprit,
    looks_like_victim,
    misses_a_rank,
    ran_out_of_time,
)
from puffrun.watch.observations import AgentLost, DeadChild, RankView, Signalled, Stalled
from puffrun.watch.state_machine import WatchState

UNKNOWN = Cause("agent-lost", "the ranks ended, but not all of their exit statuses are known")


@dataclass(frozen=True)
class Verdict:
    """How the run ended; `victims` are ranks that failed because of somebody else."""

    kind: OutcomeKind
    exit_code: int
    cause: Cause | None
    victims: tuple[int, ...] = ()


def conclude(state: WatchState) -> Verdict:
    """Climb down the blame order and return the first rung that holds."""
    if state.succeeded and not state.signals:
        return Verdict("success", 0, None)
    failed = [view for view in state.ranks.values() if view.failed]
    return (
        _blame_suspect(failed)
        or _blame_disagreement(state, failed)
        or _blame_signal(state, failed)
        or _blame_early_exit(state, failed)
        or _blame_watchdog(state, failed)
        or _blame_victim(failed)
        or _blame_timeout(state)
        or Verdict("launch-failed", 73, UNKNOWN)
    )


def add_late_victims(
    verdict: Verdict, state: WatchState, errors: Mapping[int, ErrorRecord], stopped_at: int | None
) -> Verdict:
    """Add the victims whose error was read too late, though they raised it before our kill.

    Ranks fall within milliseconds of the first one, while the evidence is taken. What was raised
    after `stopped_at` (`time.time_ns()`) may be our own doing.
    """
    if verdict.cause is None or stopped_at is None:
        return verdict
    late = {
        rank
        for rank, view in state.ranks.items()
        if rank in errors
        and errors[rank].at <= stopped_at
        and looks_like_victim(replace(view, error=errors[rank]))
    }
    victims = sorted({*verdict.victims, *late} - {verdict.cause.rank})
    return replace(verdict, victims=tuple(victims))


def blame_missing(verdict: Verdict, state: WatchState, hang: Hang | None) -> Verdict:
    """Blame the rank that the others missed, where all that failed is that they missed it.

    A collective with a time limit of its own ends those who wait in it, and not the one that is
    elsewhere.
    """
    failed = [view for view in state.ranks.values() if view.failed]
    if verdict.kind != "failed" or hang is None or not hang.culprits:
        return verdict
    if not all(map(looks_like_victim, failed)) or not any(map(ran_out_of_time, failed)):
        return verdict
    missing = [state.ranks[rank] for rank in hang.culprits if rank in state.ranks]
    if not missing or any(view in failed for view in missing):
        return verdict
    where = f" of {hang.waiting[0].op}" if hang.waiting else ""
    cause = Cause(
        "stall",
        f"hang: {name_ranks(hang.culprits)} did not come, and the time limit{where} ran out",
        rank=missing[0].rank,
        node=missing[0].node,
        log_tail=missing[0].log_tail,
    )
    return Verdict("hung", 75, cause, tuple(sorted(view.rank for view in failed)))


def _others(failed: list[RankView], culprit: RankView) -> tuple[int, ...]:
    return tuple(sorted(view.rank for view in failed if view is not culprit))


def _blame_suspect(failed: list[RankView]) -> Verdict | None:
    return _blame_first([view for view in failed if not looks_like_victim(view)], failed)


def _blame_disagreement(state: WatchState, failed: list[RankView]) -> Verdict | None:
    """Blame the rank that the ranks' common text is about; its own record tells most."""
    told = [view for view in failed if disagrees(view) and not misses_a_rank(view)]
    if not told:
        return None
    first = min(told, key=blame_key)
    rank = find_culprit(first)
    culprit = next((view for view in told if view.rank == rank), None)
    cause = replace(describe_failure(culprit or first), kind="disagreement", rank=rank)
    if culprit is None:  # nobody's fault alone, or a rank that has said nothing
        node = None if rank is None else _find_node(state, rank)
        cause = replace(cause, node=node, exit_code=None, signal=None, traceback=None, frames=())
    victims = tuple(sorted(view.rank for view in failed if view.rank != rank))
    return Verdict("disagreed", exit_code_of(culprit or first), cause, victims)


def _blame_victim(failed: list[RankView]) -> Verdict | None:
    return _blame_first(failed, failed)


def _blame_first(candidates: list[RankView], failed: list[RankView]) -> Verdict | None:
    if not candidates:
        return None
    culprit = min(candidates, key=blame_key)
    cause = describe_failure(culprit)
    return Verdict("failed", exit_code_of(culprit), cause, _others(failed, culprit))


def _blame_signal(state: WatchState, failed: list[RankView]) -> Verdict | None:
    """Unless the kill was under way before: a Ctrl-C that hurries it is not why the run ended."""
    if not state.signals or not (isinstance(state.stop_reason, Signalled) or state.succeeded):
        return None
    signum = state.signals[0]
    cause = Cause("stop", f"stopped by {signal_name(signum)}", signal=signum)
    return Verdict("stopped", 128 + signum, cause, tuple(view.rank for view in failed))


def _blame_early_exit(state: WatchState, failed: list[RankView]) -> Verdict | None:
    left = [
        view
        for view in state.ranks.values()
        if view.exited and view.returncode == 0 and not view.exited_after_stop
    ]
    waited = state.stop_is_due_to("exit")
    if not left or not (failed or waited):
        return None
    first = min(left, key=lambda view: view.ended_at or 0)
    still_running = sorted(view.rank for view in state.ranks.values() if view not in left)
    cause = Cause(
        "early-exit",
        "exited 0",
        rank=first.rank,
        node=first.node,
        exit_code=0,
        log_tail=first.log_tail,
        detail={"left": [view.rank for view in left], "still_running": still_running},
    )
    return Verdict("hung", 75, cause, tuple(view.rank for view in failed))


def _blame_watchdog(state: WatchState, failed: list[RankView]) -> Verdict | None:
    victims = tuple(view.rank for view in failed)
    match state.stop_reason:
        case DeadChild() as seen:
            return Verdict("hung", 75, _dead_child(seen, state), victims)
        case Stalled() as seen:
            return Verdict("hung", 75, _stalled(seen, state), victims)
        case AgentLost() as seen:
            cause = Cause("agent-lost", seen.what)
            return Verdict("launch-failed", 73, cause, victims)
        case _:
            return None


def _blame_timeout(state: WatchState) -> Verdict | None:
    if not state.stop_is_due_to("timeout"):
        return None
    limit_s = state.rules.timeout_s or 0.0
    cause = Cause("timeout", f"the time limit of {limit_s:g} s ran out (--timeout)")
    return Verdict("timeout", 124, cause)


def _find_node(state: WatchState, rank: int) -> int | None:
    view = state.ranks.get(rank)
    return None if view is None else view.node


def _dead_child(seen: DeadChild, state: WatchState) -> Cause:
    """Name the rank; its own end is ours, so the child's stands in the detail."""
    return Cause(
        "dead-child",
        f"rank {seen.rank} runs on without its child process {seen.name} (pid {seen.pid}), "
        f"which {describe_exit(seen.returncode)}",
        rank=seen.rank,
        node=_find_node(state, seen.rank),
        detail={"pid": seen.pid, "name": seen.name, "returncode": seen.returncode},
    )


def _stalled(seen: Stalled, state: WatchState) -> Cause:
    detail = {"stall_s": seen.for_s, "stopped_ranks": list(seen.stopped_ranks)}
    if seen.stopped_ranks:
        rank = seen.stopped_ranks[0]
        summary = f"rank {rank} is stopped (SIGSTOP), and no rank moved for {seen.for_s:.0f} s"
        node = _find_node(state, rank)
        return Cause("stall", summary, rank=rank, node=node, detail=detail)
    return Cause("stall", f"hang: no rank moved for {seen.for_s:.0f} s", detail=detail)
