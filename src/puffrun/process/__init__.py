"""The only part of puffrun that starts or signals processes."""

from puffrun.process.captured import Captured, run_captured
from puffrun.process.guarded import Guarded, GuardedExit, end_orphans, start_guarded
from puffrun.process.tree import (
    ProcStat,
    find_descendants,
    find_moving,
    find_stat,
    read_stats,
    send_signal,
)

__all__ = [
    "Captured",
    "Guarded",
    "GuardedExit",
    "ProcStat",
    "end_orphans",
    "find_descendants",
    "find_moving",
    "find_stat",
    "read_stats",
    "run_captured",
    "send_signal",
    "start_guarded",
]
