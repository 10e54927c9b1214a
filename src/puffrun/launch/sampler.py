"""Samples what sends no event: dead children that nobody reaps, stopped ranks, and stalls."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from puffrun import diagnose
from puffrun.plan import LaunchPlan
from puffrun.process import read_stats
from puffrun.rundir import RunDir
from puffrun.watch import DeadChild, Observation, Stalled

BUSY_TICKS_PER_S = 5  # CPU ticks a second above which a run is said to compute


@dataclass
class Sampler:
    """Reads /proc once a sample; remembers since when things are as they are."""

    plan: LaunchPlan
    run_dir: RunDir
    _dead_since: dict[tuple[int, int], float] = field(default_factory=dict)
    _moved_at: float | None = None
    _last: tuple[float, int, int] | None = None
    _next: float = 0.0

    def sample(self, rank_pids: Mapping[int, int], now: float) -> list[Observation]:
        """Look once (at most once a second) and return what is worth an observation."""
        if now < self._next or not rank_pids:
            return []
        self._next = now + 1.0
        stats = read_stats()
        found = self._find_dead_children(diagnose.find_crashed_children(rank_pids, stats), now)
        cpu = diagnose.measure_cpu(rank_pids.values(), stats)
        stall = self._find_stall(cpu, self._log_bytes(rank_pids), now)
        if stall is not None:
            found.append(Stalled(stall, diagnose.find_stopped(rank_pids, stats)))
        return found

    def shift(self, by_s: float) -> None:
        """Take no notice of the time in which the whole run was paused."""
        self._dead_since = {key: at + by_s for key, at in self._dead_since.items()}
        if self._moved_at is not None:
            self._moved_at += by_s

    def _find_dead_children(self, zombies: list[diagnose.Zombie], now: float) -> list[Observation]:
        known = {(z.stat.pid, z.stat.started): z for z in zombies}
        self._dead_since = {key: self._dead_since.get(key, now) for key in known}
        limit = self.plan.dead_child_timeout_s
        return [
            DeadChild(z.rank, z.stat.pid, z.stat.name, z.returncode, now - self._dead_since[key])
            for key, z in known.items()
            if limit > 0 and now - self._dead_since[key] >= limit
        ]

    def _find_stall(self, cpu: int, log_bytes: int, now: float) -> float | None:
        """How long nothing has moved, once that is longer than allowed."""
        last, self._last = self._last, (now, cpu, log_bytes)
        if last is None or self._moved_at is None:
            self._moved_at = now
            return None
        busy = cpu - last[1] > BUSY_TICKS_PER_S * (now - last[0])
        if busy or log_bytes != last[2]:
            self._moved_at = now
        still_s = now - self._moved_at
        limit = self.plan.stall_timeout_s
        return still_s if 0 < limit <= still_s else None

    def _log_bytes(self, rank_pids: Mapping[int, int]) -> int:
        total = 0
        for rank in rank_pids:
            path = self.run_dir.log_path(rank)
            total += path.stat().st_size if path.exists() else 0
        return total
