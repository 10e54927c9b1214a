"""Samples what sends no event: dead children that nobody reaps, stopped ranks, and stalls."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from puffrun import diagnose
from puffrun.launch.lateness import LatenessClock
from puffrun.launch.stall import StallClock
from puffrun.plan import LaunchPlan
from puffrun.process import read_stats
from puffrun.rundir import RunDir
from puffrun.watch import DeadChild, Observation, Stalled


@dataclass
class Sampler:
    """Reads /proc once a sample; remembers since when things are as they are."""

    plan: LaunchPlan
    run_dir: RunDir
    _dead_since: dict[tuple[int, int], float] = field(default_factory=dict)
    _next: float = 0.0
    _stall: StallClock = field(init=False)
    _lateness: LatenessClock = field(init=False)

    def __post_init__(self) -> None:
        """Start the clocks."""
        self._stall = StallClock(self.run_dir, self.plan.stall_timeout_s)
        self._lateness = LatenessClock(self.plan, self.run_dir)

    @property
    def lateness(self) -> diagnose.Lateness:
        """Who has made the others wait so far."""
        return self._lateness.lateness

    def sample(self, rank_pids: Mapping[int, int], now: float) -> list[Observation]:
        """Look once (at most once a second) and return what is worth an observation."""
        if now < self._next or not rank_pids:
            return []
        self._next = now + 1.0
        stats = read_stats()
        found = self._find_dead_children(diagnose.find_crashed_children(rank_pids, stats), now)
        self._lateness.observe(rank_pids, now)
        stall_s = self._stall.observe(rank_pids, stats, now)
        if stall_s is not None:
            found.append(Stalled(stall_s, diagnose.find_stopped(rank_pids, stats)))
        return found

    def shift(self, by_s: float) -> None:
        """Take no notice of the time in which the whole run was paused."""
        self._dead_since = {key: at + by_s for key, at in self._dead_since.items()}
        self._stall.shift(by_s)

    def _find_dead_children(self, zombies: list[diagnose.Zombie], now: float) -> list[Observation]:
        known = {(z.stat.pid, z.stat.started): z for z in zombies}
        self._dead_since = {key: self._dead_since.get(key, now) for key in known}
        limit = self.plan.dead_child_timeout_s
        return [
            DeadChild(z.rank, z.stat.pid, z.stat.name, z.returncode, now - self._dead_since[key])
            for key, z in known.items()
            if limit > 0 and now - self._dead_since[key] >= limit
        ]
