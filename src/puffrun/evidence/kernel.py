"""What the kernel and the logs say of the ranks: /proc, cgroup counters, log tails.

Reads only; nothing here disturbs a rank.
"""

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from puffrun.evidence.rank_evidence import NativeState
from puffrun.process import ProcStat, find_descendants

STACKS_FILE = "torch-dump_traceback"  # what torch's worker server calls it
TAIL_BYTES = 1 << 16
TAIL_LINES = 40
POLITE_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)


def read_log_tail(path: Path, max_lines: int = TAIL_LINES) -> tuple[str, ...]:
    """Read the last lines of a log; of a line that carriage returns redraw, its last state."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            data = file.read()
    except FileNotFoundError:
        return ()
    lines = data.decode("utf-8", "replace").rstrip("\n").split("\n")
    if size > TAIL_BYTES:
        lines = lines[1:]  # most likely cut in its middle
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return tuple(shown[-max_lines:]) if any(shown) else ()


def find_litter(pids: Iterable[int]) -> list[Path]:
    """Find the temporary files in which ranks are about to write the stacks they were asked for.

    One that never gives the GIL away is killed before it does, and before it removes its file.
    """
    found = []
    for pid in pids:
        with suppress(OSError):  # it is gone, or somebody else's
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    path = entry.readlink()
                    found += [path] if path.name.startswith(STACKS_FILE) else []
    return [path for path in found if path.exists()]


@dataclass(frozen=True)
class Zombie:
    """A crashed child that its rank has not reaped; `returncode` as subprocess has it."""

    rank: int
    stat: ProcStat
    returncode: int


def find_crashed_children(
    rank_pids: Mapping[int, int], stats: Mapping[int, ProcStat]
) -> list[Zombie]:
    """Find the crashed, unreaped direct children of living ranks (`rank_pids`: rank → pid).

    Programs leave children that ended well unreaped for a long time, or end their helpers
    politely; that is no crash. A failed exit code counts only for a fork of the rank itself (an
    env worker has its name), because a helper program that failed is the program's own affair.
    """
    ranks = {pid: rank for rank, pid in rank_pids.items() if pid in stats and stats[pid].alive}
    crashed = []
    for stat in stats.values():
        if stat.state != "Z" or stat.ppid not in ranks:
            continue
        returncode = os.waitstatus_to_exitcode(stat.status)
        is_fork = stat.name == stats[stat.ppid].name
        if (returncode < 0 and -returncode not in POLITE_ENDS) or (returncode > 0 and is_fork):
            crashed.append(Zombie(ranks[stat.ppid], stat, returncode))
    return crashed


def find_stopped(rank_pids: Mapping[int, int], stats: Mapping[int, ProcStat]) -> tuple[int, ...]:
    """Find the ranks that a SIGSTOP (or a debugger) holds."""
    return tuple(
        sorted(rank for rank, pid in rank_pids.items() if pid in stats and stats[pid].state in "Tt")
    )


def measure_cpu(pids: Iterable[int], stats: Mapping[int, ProcStat]) -> int:
    """Sum the CPU time, in clock ticks, of processes and of everything below them."""
    roots = [pid for pid in pids if pid in stats]
    return sum(stats[pid].cpu for pid in roots) + sum(
        stat.cpu for stat in find_descendants(roots, stats)
    )


def read_io_bytes(pid: int) -> int:
    """Read how much a process has read and written so far; 0 when it is gone or not ours."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar:", "wchar:")))


def read_wanted_ns(pid: int) -> dict[int, int]:
    """Read for how long each thread of a process has run or waited for a CPU, in nanoseconds.

    On a loaded machine a rank gets little CPU time, but it wants no less of it. {} when the
    process is gone, not ours, or the kernel does not tell (CONFIG_SCHED_INFO).
    """
    wanted = {}
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            run_ns, wait_ns, *_ = (task / "schedstat").read_text().split()
            wanted[int(task.name)] = int(run_ns) + int(wait_ns)
    except (OSError, ValueError):
        return wanted
    return wanted


def read_native_state(pid: int, stats: Mapping[int, ProcStat]) -> NativeState:
    """Read what the main thread of a process does, as far as the kernel tells us."""
    try:
        wait = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        wait = ""
    children = [stat for stat in stats.values() if stat.ppid == pid and stat.alive]
    return NativeState(
        state=stats[pid].state if pid in stats else "",
        wait="" if wait == "0" else wait,
        children=tuple(f"{stat.name} (pid {stat.pid})" for stat in children),
    )
