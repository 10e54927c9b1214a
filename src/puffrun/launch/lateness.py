"""Looks at the ranks of a run that goes well, ever less often, to learn who waits for whom."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from puffrun import diagnose
from puffrun.plan import LaunchPlan
from puffrun.rundir import RunDir

FIRST_LOOK_S = 5.0
MAX_PAUSE_S = 300.0


@dataclass
class LatenessClock:
    """Looks 5, 10, 20, 40 s … after the start, at last every five minutes."""

    plan: LaunchPlan
    run_dir: RunDir
    lateness: diagnose.Lateness = field(default_factory=diagnose.Lateness)
    _next_s: float | None = None
    _pause_s: float = FIRST_LOOK_S

    def observe(self, rank_pids: Mapping[int, int], now: float) -> None:
        """Look, if it is time to."""
        if self._next_s is None:
            self._next_s = now + self._pause_s
        if now < self._next_s or len(rank_pids) < 2:  # noqa: PLR2004  # one rank waits for nobody
            return
        evidence = diagnose.collect_evidence(self.run_dir, rank_pids, diagnose.PASSING)
        self.lateness = diagnose.add_lateness(
            self.lateness, evidence, self.plan.cwd, self.plan.world_size
        )
        self._next_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
