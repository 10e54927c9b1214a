"""What the watchdog sees and what it asks for: frozen values.

Durations and `now` are monotonic seconds; instants named `at` are `time.time_ns()` of the node
where the thing happened, good for order within that node only.
"""

from dataclasses import dataclass

from puffrun.outcome import ErrorRecord


@dataclass(frozen=True)
class Rules:
    """The deadlines of a run, in seconds; `stall_timeout_s` 0 and `timeout_s` None mean never.

    `blame_window_s` is how long the kill waits for the true cause when the first rank to fail
    looks like a victim of another one.
    """

    world_size: int
    exit_timeout_s: float = 60.0
    timeout_s: float | None = None
    blame_window_s: float = 3.0


@dataclass(frozen=True)
class RankStarted:
    """A rank's process exists."""

    rank: int
    local_rank: int
    node: int
    pid: int
    at: int


@dataclass(frozen=True)
class RankExited:
    """A rank's process is gone; `returncode` is subprocess's (-N for signal N), None if unknown."""

    rank: int
    returncode: int | None
    at: int
    log_tail: tuple[str, ...] = ()
    oom: bool = False


@dataclass(frozen=True)
class RankRaised:
    """An uncaught exception is about to end a rank's process (which may linger)."""

    record: ErrorRecord


@dataclass(frozen=True)
class DeadChild:
    """A child of a rank crashed and has been unreaped (a zombie) for longer than allowed."""

    rank: int
    pid: int
    name: str
    returncode: int
    dwell_s: float


@dataclass(frozen=True)
class Stalled:
    """No rank made progress for this long."""

    for_s: float
    stopped_ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Signalled:
    """puffrun itself got a signal."""

    signum: int


@dataclass(frozen=True)
class AgentLost:
    """The torchrun agent, or the guardian above it, is gone though ranks are not done."""

    what: str


@dataclass(frozen=True)
class TreeEnded:
    """The guardian proved that no process of the run is left, or named what is."""

    leftover_pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReaderAwaited:
    """Output of shown ranks had to wait so long, because nobody reads it (Ctrl-S, a pager)."""

    for_s: float


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Observation = (
    RankStarted
    | RankExited
    | RankRaised
    | DeadChild
    | Stalled
    | Signalled
    | AgentLost
    | TreeEnded
    | ReaderAwaited
    | Tick
)


@dataclass(frozen=True)
class Collect:
    """Take evidence of what the living ranks do, before anything is signalled."""

    why: str


@dataclass(frozen=True)
class Stop:
    """End every process of the run: SIGTERM, the grace period, SIGKILL."""


@dataclass(frozen=True)
class Hurry:
    """Cut the grace period to nothing."""


@dataclass(frozen=True)
class Forward:
    """Pass a signal on to the ranks; the run goes on."""

    signum: int


@dataclass(frozen=True)
class Finish:
    """The run is over."""


Action = Collect | Stop | Hurry | Forward | Finish


@dataclass(frozen=True)
class RankView:
    """All that is known of one rank. `exited_after_stop`: it ended once we had begun the kill."""

    rank: int
    local_rank: int
    node: int
    pid: int
    started_at: int
    exited: bool = False
    returncode: int | None = None
    ended_at: int | None = None
    error: ErrorRecord | None = None
    log_tail: tuple[str, ...] = ()
    oom: bool = False
    exited_after_stop: bool = False

    @property
    def failed(self) -> bool:
        """Ended abnormally by itself, or is about to: not by our own kill."""
        if self.error is not None:
            return True
        return self.exited and self.returncode != 0 and not self.exited_after_stop
