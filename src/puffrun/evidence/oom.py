"""Telling an out-of-memory kill from any other SIGKILL: the kernel's log, and cgroup counters."""

import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

OOM_LINE = re.compile(r"Killed process (\d+)\b")
KERNEL_RECORD_BYTES = 8192  # the kernel's limit for one record
MAX_KERNEL_RECORDS = 100_000
CLOCK_SLACK_NS = 10**9  # the two clocks are not quite the same
CGROUP = Path("/proc/self/cgroup")


def read_oom_kills() -> int:
    """Count the OOM kills of this process's own cgroup so far; 0 where it cannot be told."""
    return sum(_read_oom_kills(path) for path in _memory_event_paths())


def _memory_event_paths() -> list[Path]:
    try:
        entries = CGROUP.read_text().splitlines()
    except OSError:
        return []
    paths = []
    for entry in entries:
        _, controllers, group = entry.split(":", 2)
        if controllers == "":
            paths.append(Path("/sys/fs/cgroup") / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            paths.append(Path("/sys/fs/cgroup/memory") / group.lstrip("/") / "memory.oom_control")
    return paths


def _read_oom_kills(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _printk_now_us() -> int:
    """The clock of the kernel's log, which like CLOCK_MONOTONIC stands still while suspended."""
    return (time.monotonic_ns() - CLOCK_SLACK_NS) // 1000


@dataclass
class OomWatch:
    """Knows how things stood when a run began."""

    _kills: int = field(default_factory=read_oom_kills)
    _since_us: int = field(default_factory=_printk_now_us)

    def was_killed(self, pid: int) -> bool:
        """Whether a process that died of SIGKILL was killed for memory.

        The kernel's log names it; where that is not ours to read, an OOM kill in our cgroup
        since the run began has to do.
        """
        log_text = read_kernel_log()
        if log_text:
            return pid in find_oom_victims(log_text, self._since_us)
        return read_oom_kills() > self._kills


def find_oom_victims(log_text: str, since_us: int) -> set[int]:
    """Find the pids that the kernel's log says were killed for memory; `since_us` since boot.

    A record is `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT` (Documentation/ABI/testing/dev-kmsg).
    """
    victims = set()
    for line in log_text.splitlines():
        head, _, text = line.partition(";")
        killed = OOM_LINE.search(text)
        if killed and int(head.split(",")[2]) >= since_us:
            victims.add(int(killed[1]))
    return victims


def read_kernel_log() -> str:
    """Read the kernel's log as far as it is there; "" where it is not ours to read."""
    records: list[bytes] = []
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while len(records) < MAX_KERNEL_RECORDS:
            records.append(os.read(log, KERNEL_RECORD_BYTES))
    except OSError:  # the end (EAGAIN), or records that were overwritten meanwhile (EPIPE)
        return b"".join(records).decode("utf-8", "replace")
    finally:
        os.close(log)
    return b"".join(records).decode("utf-8", "replace")
