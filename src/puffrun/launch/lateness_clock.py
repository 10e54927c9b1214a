"""Looks at the ranks of a run that goes well, ever less often, to learn who waits for whom."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from puffrun.diagnose import Lateness, add_lateness
from puffrun.evidence import PASSING, Patience, RankEvidence

FIRST_LOOK_S = 5.0
MAX_PAUSE_S = 300.0


@dataclass
class LatenessClock:
    """Looks 5, 10, 20, 40 s … after the start, at last every five minutes."""

    cwd: Path
    world_size: int
    lateness: Lateness = field(default_factory=Lateness)
    _next_s: float | None = None
    _pause_s: float = FIRST_LOOK_S

    def observe(
        self, running: int, now: float, glance: Callable[[Patience], tuple[RankEvidence, ...]]
    ) -> None:
        """Look by `glance`, if it is time to; `running` is how many ranks there are."""
        if running == 0:
            return
        if self._next_s is None:
            self._next_s = now + self._pause_s
        if now < self._next_s or running < 2:  # noqa: PLR2004  # one rank waits for nobody
            return
        self.lateness = add_lateness(self.lateness, glance(PASSING), self.cwd, self.world_size)
        self._next_s = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
