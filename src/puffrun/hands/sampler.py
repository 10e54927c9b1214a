"""Samples what sends no event: dead children that nobody reaps, stopped ranks, and stalls."""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from puffrun.evidence import Zombie, find_crashed_children, find_stopped
from puffrun.hands.stall_clock import StallClock
from puffrun.plan import LaunchPlan
from puffrun.process import ProcStat, read_stats
from puffrun.rundir import RunDir
from puffrun.watch import DeadChild, Observation, Stalled

EVERY_S = 1.0
MAX_EVERY_S = 10.0
COST_FACTOR = 300  # samples take at most a 300th of a core, also on a machine full of processes


@dataclass
class Sampler:
    """Reads /proc once a sample; remembers since when things are as they are."""

    plan: LaunchPlan
    run_dir: RunDir
    _dead_since: dict[tuple[int, int], float] = field(default_factory=dict)
    _next: float = 0.0
    _dead_ranks: dict[int, int] = field(default_factory=dict)
    unreported: dict[int, int] = field(default_factory=dict)  # rank → returncode
    _stall: StallClock = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self._stall = StallClock(self.run_dir, self.plan.stall_timeout_s)

    def sample(
        self, rank_pids: Mapping[int, int], now: float, *, is_console_full: bool = False
    ) -> list[Observation]:
        """Look once (at most once a second) and return what is worth an observation.

        A console that takes no more output (Ctrl-S, a pager) holds up the ranks it shows: that
        is no stall.
        """
        if now < self._next or not rank_pids:
            return []
        began = time.thread_time()
        found = self._look(rank_pids, now, is_console_full=is_console_full)
        cost_s = time.thread_time() - began
        self._next = now + min(max(EVERY_S, COST_FACTOR * cost_s), MAX_EVERY_S)
        return found

    def _find_unreported(
        self, rank_pids: Mapping[int, int], stats: Mapping[int, ProcStat]
    ) -> dict[int, int]:
        """Find ranks that are dead although nobody has said so, and how they ended.

        The agent reports each exit at once; one that is stopped cannot. A rank counts when it was
        dead at the last sample too.
        """
        dead = {
            rank: os.waitstatus_to_exitcode(stats[pid].status)
            for rank, pid in rank_pids.items()
            if pid in stats and not stats[pid].alive
        }
        before, self._dead_ranks = self._dead_ranks, dead
        return {rank: returncode for rank, returncode in dead.items() if rank in before}

    def _look(
        self, rank_pids: Mapping[int, int], now: float, *, is_console_full: bool
    ) -> list[Observation]:
        stats = read_stats()
        self.unreported = self._find_unreported(rank_pids, stats)
        found = self._find_dead_children(find_crashed_children(rank_pids, stats), now)
        if is_console_full:
            self._stall.restart(now)
            return found
        stall_s = self._stall.observe(rank_pids, stats, now)
        if stall_s is not None:
            found.append(Stalled(stall_s, find_stopped(rank_pids, stats)))
        return found

    def shift(self, by_s: float) -> None:
        """Take no notice of the time in which the whole run was paused."""
        self._dead_since = {key: at + by_s for key, at in self._dead_since.items()}
        self._stall.shift(by_s)

    def _find_dead_children(self, zombies: list[Zombie], now: float) -> list[Observation]:
        known = {(z.stat.pid, z.stat.started): z for z in zombies}
        self._dead_since = {key: self._dead_since.get(key, now) for key in known}
        limit = self.plan.dead_child_timeout_s
        return [
            DeadChild(z.rank, z.stat.pid, z.stat.name, z.returncode, now - self._dead_since[key])
            for key, z in known.items()
            if limit > 0 and now - self._dead_since[key] >= limit
        ]
