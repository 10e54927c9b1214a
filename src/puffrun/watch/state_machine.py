"""`step(state, observation, now) -> (state, actions)`: when to collect, when to kill, when to end.

Pure: the tests replay histories without a process or a clock.
"""

import signal
from dataclasses import dataclass, field, replace
from typing import Literal

from puffrun.watch.blame import looks_like_victim
from puffrun.watch.observations import (
    Action,
    AgentLost,
    Collect,
    DeadChild,
    Finish,
    Forward,
    Hurry,
    Observation,
    RankExited,
    RankRaised,
    RankStarted,
    RankView,
    ReaderAwaited,
    Rules,
    Signalled,
    Stalled,
    Stop,
    Tick,
    TreeEnded,
)

Deadline = Literal["blame", "exit", "timeout"]
FORWARDED = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)


@dataclass(frozen=True)
class WatchState:
    """Everything seen so far.

    `stop_reason` is set once the kill has begun; `stop_deadline` names the deadline, if any,
    whose passing began it.
    """

    rules: Rules
    started_s: float
    ranks: dict[int, RankView] = field(default_factory=dict)
    stop_reason: Observation | None = None
    first_failure_s: float | None = None
    first_success_s: float | None = None
    signals: tuple[int, ...] = ()
    leftover_pids: tuple[int, ...] = ()
    stop_deadline: Deadline | None = None
    finished: bool = False

    @property
    def stopping(self) -> bool:
        """Whether the kill has begun (also after a success, for what the ranks left)."""
        return self.stop_reason is not None

    @property
    def running(self) -> tuple[int, ...]:
        """Ranks whose process still exists."""
        return tuple(sorted(r for r, view in self.ranks.items() if not view.exited))

    @property
    def all_exited(self) -> bool:
        """Whether every rank has started and ended."""
        return len(self.ranks) == self.rules.world_size and not self.running

    @property
    def succeeded(self) -> bool:
        """Whether every rank exited 0 by itself."""
        return self.all_exited and all(
            view.returncode == 0 and view.error is None and not view.exited_after_stop
            for view in self.ranks.values()
        )

    def stop_is_due_to(self, deadline: Deadline) -> bool:
        """Whether this deadline's passing began the kill."""
        return self.stop_deadline == deadline

    def deadlines(self) -> dict[Deadline, float]:
        """When each deadline that is running now will pass, in monotonic seconds."""
        due: dict[Deadline, float] = {}
        if self.stopping:
            return due
        if self.first_failure_s is not None:
            due["blame"] = self.first_failure_s + self.rules.blame_window_s
        if self.first_success_s is not None and self.running:
            due["exit"] = self.first_success_s + self.rules.exit_timeout_s
        if self.rules.timeout_s is not None:
            due["timeout"] = self.started_s + self.rules.timeout_s
        return due

    def next_deadline_s(self) -> float | None:
        """When a `Tick` would change something, in monotonic seconds."""
        return min(self.deadlines().values(), default=None)


Step = tuple[WatchState, tuple[Action, ...]]


def step(  # noqa: C901, PLR0911  # one return a kind of observation
    state: WatchState, observation: Observation, now: float
) -> Step:
    """Take one observation in; return the new state and what is to be done, in order."""
    match observation:
        case RankStarted():
            return _rank_started(state, observation), ()
        case RankExited():
            return _judge(_rank_exited(state, observation, now), observation, now)
        case RankRaised():
            return _judge(_rank_raised(state, observation, now), observation, now)
        case Signalled():
            return _signalled(state, observation)
        case DeadChild() | Stalled() | AgentLost():
            return _stop(state, observation)
        case TreeEnded():
            ended = replace(state, leftover_pids=observation.leftover_pids, finished=True)
            return ended, (Finish(),)
        case ReaderAwaited():
            return await_reader(state, observation.for_s), ()
        case Tick():
            return _tick(state, now)


def shift(state: WatchState, by_s: float) -> WatchState:
    """Move every running deadline, after the whole run was paused for `by_s` seconds."""
    failure_s = state.first_failure_s
    return replace(
        await_reader(state, by_s),
        started_s=state.started_s + by_s,
        first_failure_s=None if failure_s is None else failure_s + by_s,
    )


def await_reader(state: WatchState, by_s: float) -> WatchState:
    """Move the deadline of those who outlast an early leaver: their output had to wait so long."""
    if state.first_success_s is None:
        return state
    return replace(state, first_success_s=state.first_success_s + by_s)


def _with_rank(state: WatchState, view: RankView) -> WatchState:
    return replace(state, ranks={**state.ranks, view.rank: view})


def _rank_started(state: WatchState, seen: RankStarted) -> WatchState:
    return _with_rank(state, RankView(seen.rank, seen.local_rank, seen.node, seen.pid, seen.at))


def _rank_exited(state: WatchState, seen: RankExited, now: float) -> WatchState:
    view = state.ranks[seen.rank]
    if view.exited:
        return state
    view = replace(
        view,
        exited=True,
        returncode=seen.returncode,
        ended_at=seen.at,
        log_tail=seen.log_tail,
        oom=seen.oom,
        exited_after_stop=state.stopping,
    )
    state = _with_rank(state, view)
    if seen.returncode == 0 and state.first_success_s is None:
        state = replace(state, first_success_s=now)
    if view.failed and state.first_failure_s is None:
        state = replace(state, first_failure_s=now)
    return state


def _rank_raised(state: WatchState, seen: RankRaised, now: float) -> WatchState:
    view = state.ranks.get(seen.record.rank)
    if view is None or view.error is not None or state.stopping:
        return state  # what a rank raises once it is being killed explains nothing
    state = _with_rank(state, replace(view, error=seen.record))
    return state if state.first_failure_s is not None else replace(state, first_failure_s=now)


def _judge(state: WatchState, seen: Observation, now: float) -> Step:
    """After a rank ended or raised: is the run over, and may the kill begin?"""
    if state.stopping:
        return state, ()
    if state.all_exited:
        return _stop(state, seen)
    if state.first_failure_s is None:
        return state, ()
    failures = [view for view in state.ranks.values() if view.failed]
    if any(not looks_like_victim(view) for view in failures):
        return _stop(state, seen)
    return _tick(state, now)


def _tick(state: WatchState, now: float) -> Step:
    passed = [(at, name) for name, at in state.deadlines().items() if now >= at]
    if not passed:
        return state, ()
    return _stop(replace(state, stop_deadline=min(passed)[1]), Tick())


def _signalled(state: WatchState, seen: Signalled) -> Step:
    if seen.signum in FORWARDED:
        return state, (Forward(seen.signum),)
    state = replace(state, signals=(*state.signals, seen.signum))
    if not state.stopping:
        return replace(state, stop_reason=seen), (Stop(),)
    return state, (Hurry(),)


def _stop(state: WatchState, reason: Observation) -> Step:
    if state.stopping:
        return state, ()
    evidence: tuple[Action, ...] = () if state.all_exited else (Collect(type(reason).__name__),)
    return replace(state, stop_reason=reason), (*evidence, Stop())
