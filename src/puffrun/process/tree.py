"""What runs below a process, read from /proc, and signals that can only reach what was meant.

Standard library only and quick to import: the guardian starts with nothing else. A process is
identified by pid *and* start time, so that a reused pid is never signalled.
"""

import os
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcStat:
    """One line of /proc/PID/stat. `started` is in clock ticks since boot, `cpu` in clock ticks.

    `state` is the kernel's letter: R, S, D (uninterruptible), T (stopped), Z (zombie), X (dead).
    `status` is a zombie's wait status (see `os.waitstatus_to_exitcode`), else 0. A process whose
    first thread has ended is called Z too while other `threads` of it live on.
    """

    pid: int
    ppid: int
    name: str
    state: str
    started: int
    cpu: int
    session: int = 0
    status: int = 0
    threads: int = 1

    @property
    def alive(self) -> bool:
        """Whether it can still act: a zombie cannot, unless threads outlive its main one."""
        return self.state not in "ZX" or self.threads > 1


def find_stat(pid: int) -> ProcStat | None:
    """Read one process, or None when there is no such process (any more)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # pathlib is slow to import
            text = file.read().decode("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the name may hold spaces and brackets, so split at its last closing one
    head, _, tail = text.rpartition(")")
    name = head.partition("(")[2]
    fields = tail.split()
    return ProcStat(
        pid=pid,
        ppid=int(fields[1]),
        name=name,
        state=fields[0],
        started=int(fields[19]),
        cpu=int(fields[11]) + int(fields[12]),
        session=int(fields[3]),
        status=int(fields[49]) if fields[0] == "Z" else 0,
        threads=int(fields[17]),
    )


def read_stats() -> dict[int, ProcStat]:
    """Read every process of the machine, by pid."""
    stats = (find_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())  # noqa: PTH208
    return {stat.pid: stat for stat in stats if stat is not None}


def find_descendants(roots: Iterable[int], stats: Mapping[int, ProcStat]) -> list[ProcStat]:
    """List everything below `roots` (without them), parents before children."""
    children: dict[int, list[ProcStat]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat)
    found: list[ProcStat] = []
    queue = list(roots)
    while queue:
        below = children.get(queue.pop(0), [])
        found += below
        queue += [stat.pid for stat in below]
    return found


def find_moving(members: Iterable[ProcStat]) -> list[ProcStat]:
    """List those of a tree that are not stopped, nor dead as far as their first thread tells.

    A parent in vfork(2) sits in the kernel (D) until its child has executed: when the child is
    stopped, so is the parent.
    """
    members = list(members)
    still = {stat.pid for stat in members if stat.state in "TtZX"}
    held = {stat.ppid for stat in members if stat.state in "Tt"}
    return [s for s in members if s.pid not in still and not (s.state == "D" and s.pid in held)]


def send_signal(target: ProcStat, signum: int) -> bool:
    """Signal exactly this process; False when it is gone, its pid another's, or it may not be.

    The last is a process of another user, such as one that a rank started with sudo. A pidfd is
    opened first and the start time compared after: the pid cannot change hands in between.
    """
    try:
        pidfd = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return False
    try:
        now = find_stat(target.pid)
        if now is None or now.started != target.started or not now.alive:
            return False
        signal.pidfd_send_signal(pidfd, signum)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(pidfd)
    return True
