"""A rank's pulse: counters that move when it does, cheap enough to take now and then."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from puffrun.evidence.asking import NoAnswerError, ask
from puffrun.evidence.flight_records import parse_counters
from puffrun.evidence.kernel import measure_cpu, read_io_bytes, read_wanted_ns
from puffrun.process import ProcStat, find_descendants
from puffrun.rundir import RunDir

ASK_S = 0.5
BUSY_TICKS_PER_S = 5.0  # CPU ticks a second above which a rank is said to compute
BUSY_SHARE = 0.5  # of the time, that a thread runs or waits for a CPU: it computes, starved
BUSY_BYTES_PER_S = 4096.0  # the same for what it reads and writes


@dataclass(frozen=True)
class Pulse:
    """`counters`: (enqueued, completed) by process group, None when the rank cannot tell.

    `cpu` (ticks), `io_bytes` and `wanted_ns` (by thread: see `read_wanted_ns`) are the rank's and
    its children's; `is_runnable` is its main thread.
    """

    counters: Mapping[str, tuple[int, int]] | None = field(default=None)
    cpu: int = 0
    io_bytes: int = 0
    wanted_ns: Mapping[int, int] = field(default_factory=dict)
    is_runnable: bool = False

    @property
    def is_in_collective(self) -> bool:
        """Whether it has enqueued a collective that has not ended."""
        return any(enqueued > done for enqueued, done in (self.counters or {}).values())

    def moved_since(self, earlier: "Pulse", seconds: float) -> bool:
        """Whether the rank got anywhere: what it spends inside one collective does not count."""
        if self.counters != earlier.counters:
            return True
        return not self.is_in_collective and self.is_busy_since(earlier, seconds)

    def is_busy_since(self, earlier: "Pulse", seconds: float) -> bool:
        """Whether the rank worked, or would have if the machine had let it."""
        return (
            self.cpu - earlier.cpu > BUSY_TICKS_PER_S * seconds
            or self.io_bytes - earlier.io_bytes > BUSY_BYTES_PER_S * seconds
            or (self.is_runnable and earlier.is_runnable)
            or any(
                ns - earlier.wanted_ns.get(thread, 0) > BUSY_SHARE * seconds * 1e9
                for thread, ns in self.wanted_ns.items()
            )
        )


def read_pulse(run_dir: RunDir, rank: int, pid: int, stats: Mapping[int, ProcStat]) -> Pulse:
    """Take one rank's pulse; a stopped one is not asked, because it cannot answer."""
    tree = (pid, *(stat.pid for stat in find_descendants([pid], stats)))
    counters = None
    if pid in stats and stats[pid].state not in "Tt":
        try:
            answer = ask(run_dir.socket_path(rank), "fr_trace_json", ASK_S)
            counters = parse_counters(answer)
        except NoAnswerError:
            counters = None
    return Pulse(
        counters,
        measure_cpu([pid], stats),
        sum(map(read_io_bytes, tree)),
        {thread: ns for each in tree for thread, ns in read_wanted_ns(each).items()},
        is_runnable=pid in stats and stats[pid].state == "R",
    )
