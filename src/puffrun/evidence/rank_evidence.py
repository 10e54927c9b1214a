"""What is known of each rank when a verdict is wanted: frozen values."""

from dataclasses import dataclass, field

from puffrun.evidence.flight_records import FlightRecord, Journal
from puffrun.evidence.thread_stacks import ThreadStack
from puffrun.outcome import Frame


@dataclass(frozen=True)
class NativeState:
    """What the kernel says of a rank's main thread.

    `state` is the letter of /proc (R, S, D, T, t), `wait` the kernel function that it sleeps in
    ("" when it does not sleep or that may not be read), `children` are `name (pid N)`.
    """

    state: str = ""
    wait: str = ""
    children: tuple[str, ...] = ()

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped, by SIGSTOP or by a debugger."""
        return self.state in ("T", "t")


@dataclass(frozen=True)
class RankEvidence:
    """One living rank. `notes` say what is not known, and why.

    `holds_gil`: it answered, but not what needs the GIL.
    """

    rank: int
    pid: int
    native: NativeState = NativeState()
    record: FlightRecord | None = None
    journal: Journal = field(default_factory=Journal)
    threads: tuple[ThreadStack, ...] = ()
    holds_gil: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fallen:
    """A rank that has ended or is about to: how, and where (outermost frame first).

    `is_victim`: its error only says that another rank went away.
    """

    rank: int
    how: str
    frames: tuple[Frame, ...] = ()
    is_victim: bool = False
