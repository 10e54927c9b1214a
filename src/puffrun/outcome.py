"""How a run ended, as frozen values: what `watch` concludes, `report` writes and `console` draws.

The shapes are those of report.json, schema 1 (docs/report.md). Instants are `time.time_ns()`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

OutcomeKind = Literal[
    "success",
    "failed",
    "hung",
    "disagreed",
    "stopped",
    "timeout",
    "artifact-failed",
    "launch-failed",
]
CauseKind = Literal[
    "exception",
    "exit",
    "signal",
    "oom",
    "early-exit",
    "dead-child",
    "stall",
    "disagreement",
    "build",
    "timeout",
    "stop",
    "agent-lost",
    "node-lost",
]
RankState = Literal["ok", "cause", "victim", "killed"]


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback: where, in which function, and the source line ("" if unknown)."""

    path: str
    line: int
    function: str
    code: str = ""


@dataclass(frozen=True)
class ErrorRecord:
    """An uncaught exception of a rank, written by the rank itself the moment it was raised.

    `frames` are outermost first; `traceback` is Python's own text. `related` are the exceptions
    behind it, with `relation` (`cause`, `context` or `member`), `type, message, frames`.
    """

    rank: int
    pid: int
    at: int
    type: str
    message: str
    traceback: str
    frames: tuple[Frame, ...] = ()
    related: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Cause:
    """Why the run ended so. `exit_code` and `signal` are the rank's own (signal by number)."""

    kind: CauseKind
    summary: str
    rank: int | None = None
    node: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    traceback: str | None = None
    frames: tuple[Frame, ...] = ()
    log_tail: tuple[str, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RankResult:
    """What became of one rank. `exit_code` is None when a signal ended it or it is not known."""

    rank: int
    local_rank: int
    node: int
    state: RankState
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    last_progress: int | None = None
    log_path: str | None = None
    stack_path: str | None = None


@dataclass(frozen=True)
class Process:
    """A process left by the ranks: still alive (`leftovers`), or ended by us (`cleaned`)."""

    pid: int
    name: str
    rank: int | None = None
    state: str = ""


@dataclass(frozen=True)
class Waiting:
    """Ranks that wait in the same operation at one place, such as `train.py:88 in step`."""

    ranks: tuple[int, ...]
    op: str
    at: str


@dataclass(frozen=True)
class Missing:
    """Ranks that are not where the others wait, and what they do instead."""

    ranks: tuple[int, ...]
    at: str
    doing: str


@dataclass(frozen=True)
class Hang:
    """The hang verdict: who waits where, who is missing, and which ranks are the odd ones out.

    `culprits` is empty where the evidence does not single anybody out.
    """

    text: str
    waiting: tuple[Waiting, ...] = ()
    missing: tuple[Missing, ...] = ()
    culprits: tuple[int, ...] = ()


@dataclass(frozen=True)
class ArtifactResult:
    """How one artifact became usable, or did not. `dir` is its immutable directory."""

    name: str
    state: Literal["fresh", "built", "shared", "failed"]
    reason: str
    fingerprint: str
    duration_s: float
    dir: str | None = None
    log_path: str | None = None


@dataclass(frozen=True)
class Outcome:
    """The end of a run: one value that everything shown or written afterwards is made from."""

    run_id: str
    kind: OutcomeKind
    exit_code: int
    started_at: int
    ended_at: int
    cause: Cause | None = None
    ranks: tuple[RankResult, ...] = ()
    victims: tuple[int, ...] = ()
    artifacts: tuple[ArtifactResult, ...] = ()
    hang: Hang | None = None
    leftovers: tuple[Process, ...] = ()
    cleaned: tuple[Process, ...] = ()
    attempts: tuple[dict[str, Any], ...] = ()
    waiting: dict[str, Any] | None = None  # who makes the others wait; docs/hangs.md

    @property
    def duration_s(self) -> float:
        """Wall-clock length of the run in seconds."""
        return (self.ended_at - self.started_at) / 1e9
