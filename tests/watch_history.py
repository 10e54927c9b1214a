"""Replays a run's history through the state machine, as the launcher's loop would: no process."""

from dataclasses import dataclass, field

from puffrun.outcome import ErrorRecord
from puffrun.watch import (
    Action,
    Observation,
    RankExited,
    RankRaised,
    RankStarted,
    Rules,
    Tick,
    Verdict,
    WatchState,
    conclude,
    step,
)

VICTIM = "Connection closed by peer [127.0.0.1]:40213"
Moment = tuple[float, Observation]


@dataclass
class History:
    """A replay: `acts` are (seconds, action)s in order."""

    state: WatchState
    now_s: float = 0.0
    acts: list[tuple[float, Action]] = field(default_factory=list)

    def see(self, observation: Observation, at_s: float | None = None) -> None:
        at_s = self.now_s if at_s is None else at_s
        self.pass_time(at_s)
        self._step(observation)

    def pass_time(self, until_s: float) -> None:
        """Let every deadline pass that passes by then, at the moment it does."""
        while (due := self.state.next_deadline_s()) is not None and due <= until_s:
            self.now_s = max(self.now_s, due)
            self._step(Tick())
        self.now_s = until_s

    def _step(self, observation: Observation) -> None:
        self.state, actions = step(self.state, observation, self.now_s)
        self.acts += [(self.now_s, action) for action in actions]

    @property
    def verdict(self) -> Verdict:
        return conclude(self.state)

    @property
    def names(self) -> list[str]:
        return [type(action).__name__ for _, action in self.acts]

    def first(self, kind: type[Action]) -> float | None:
        """When an action of this kind was asked for first."""
        return next((at for at, action in self.acts if isinstance(action, kind)), None)


def started(rank: int) -> RankStarted:
    return RankStarted(rank, rank, 0, 1000 + rank, at=rank)


def exited(
    rank: int, code: int | None, *said: str, at_ns: int = 0, oom: bool = False
) -> RankExited:
    return RankExited(rank, code, at_ns, said, oom=oom)


def raised(rank: int, what: str = "ValueError: boom", at_ns: int = 0) -> RankRaised:
    kind, _, message = what.partition(": ")
    return RankRaised(ErrorRecord(rank, 1000 + rank, at_ns, kind, message, "Traceback ..."))


def replay(*moments: Moment, ranks: int = 2, until_s: float | None = None, **rules) -> History:
    """Start `ranks` ranks at 0 s and let things happen at their times."""
    history = History(WatchState(Rules(world_size=ranks, **rules), started_s=0.0))
    for rank in range(ranks):
        history.see(started(rank))
    for at_s, observation in moments:
        history.see(observation, at_s)
    if until_s is not None:
        history.pass_time(until_s)
    return history
