"""Ending a whole tree of processes: the leaders first, the rest after them, then SIGKILL.

One `Ending` is used in two places: by the guardian for what runs below it, and by the launcher
for the children of a guardian that was itself killed. It is driven by `step(now)`, never waits,
and is finished only when the kernel says that nothing is left, or when what is left does not
even die of SIGKILL.
"""

import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass

from puffrun.process.tree import ProcStat, send_signal

LEAVING_S = 3.0  # what a rank that raised may take, at most, to leave by itself
KILL_PATIENCE_S = 5.0  # how long SIGKILL may take to work before a process counts as unkillable


@dataclass(frozen=True)
class EndingPlan:
    """How to end a tree. `leaders` are pids that get the first SIGTERM, alone.

    `leaving` are leaders that are on their way out already (an uncaught exception): they may
    print their traceback and run their exit handlers before they get a SIGTERM too. `ours` are
    pids of puffrun's own helpers in the tree: they get SIGKILL as soon as the leaders are gone,
    because they have nothing to save. `patience_s` is how long everybody else may take to leave
    without being asked: helpers that end by themselves once their rank has (multiprocessing's
    forkserver and resource tracker) are nothing left behind. `spare` are names of daemons to
    leave alone.
    """

    grace_s: float
    leaders: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    patience_s: float = 0.0
    ours: tuple[int, ...] = ()
    spare: tuple[str, ...] = ()


class Ending:
    """SIGTERM to the leaders, to the rest once they are gone, SIGKILL to all after the grace."""

    def __init__(
        self,
        plan: EndingPlan,
        now: float,
        find_members: Callable[[], list[ProcStat]],
        signal_process: Callable[[ProcStat, int], bool] = send_signal,
    ) -> None:
        self._plan = plan
        self._ask_leaving_at = now + min(plan.grace_s / 2, LEAVING_S)
        self._ask_rest_at = now + plan.patience_s
        self._kill_at = now + plan.patience_s + plan.grace_s
        self._give_up_at = self._kill_at + KILL_PATIENCE_S
        self._find_members = find_members
        self._signal_process = signal_process
        self._asked: set[tuple[int, int]] = set()
        self._touched: dict[tuple[int, int], ProcStat] = {}
        self.leftovers: tuple[ProcStat, ...] = ()

    @property
    def touched(self) -> tuple[ProcStat, ...]:
        """Every process that was signalled, but for puffrun's own."""
        return tuple(stat for stat in self._touched.values() if stat.pid not in self._plan.ours)

    def is_over(self, now: float) -> bool:
        """Whether even the patience after SIGKILL has run out."""
        return now >= self._give_up_at

    def hurry(self, now: float) -> None:
        """Cut the grace period to nothing."""
        if now < self._kill_at:
            self._kill_at = now
            self._give_up_at = now + KILL_PATIENCE_S

    def step(self, now: float) -> bool:
        """Signal what is due; True when nothing is left to do (see `leftovers`)."""
        members = [s for s in self._find_members() if s.alive and s.name not in self._plan.spare]
        if not members:
            return True
        if now >= self._give_up_at:
            self.leftovers = tuple(members)
            return True
        if now >= self._kill_at:
            self._signal_all(members, signal.SIGKILL)
            return False
        leaders = [stat for stat in members if stat.pid in self._plan.leaders]
        if leaders:
            spared = self._plan.leaving if now < self._ask_leaving_at else ()
            self._ask([stat for stat in leaders if stat.pid not in spared])
        else:
            self._signal_all([s for s in members if s.pid in self._plan.ours], signal.SIGKILL)
            if now >= self._ask_rest_at:
                self._ask([s for s in members if s.pid not in self._plan.ours])
        return False

    def _ask(self, members: Collection[ProcStat]) -> None:
        """Send SIGTERM once to each, and SIGCONT with it, so that a stopped one can act on it."""
        new = [stat for stat in members if (stat.pid, stat.started) not in self._asked]
        self._asked.update((stat.pid, stat.started) for stat in new)
        self._signal_all(new, signal.SIGTERM)
        self._signal_all(new, signal.SIGCONT)

    def _signal_all(self, members: Collection[ProcStat], signum: int) -> None:
        for stat in members:
            if self._signal_process(stat, signum):
                self._touched.setdefault((stat.pid, stat.started), stat)
