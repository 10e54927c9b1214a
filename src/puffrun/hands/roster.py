"""The ranks of this node, as far as its hands know them: who exists, who raised, who is gone."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from puffrun.process import ProcStat


@dataclass
class LocalRank:
    """One rank's process on this node. `raised`: an uncaught exception is about to end it."""

    rank: int
    pid: int
    stat: ProcStat | None
    raised: bool = False
    exited: bool = False


@dataclass
class Roster:
    """Grows as ranks start; `expected` is how many this node will have."""

    expected: int
    _ranks: dict[int, LocalRank] = field(default_factory=dict)

    def __iter__(self) -> Iterator[LocalRank]:
        """Go through all that have started."""
        return iter(self._ranks.values())

    def __len__(self) -> int:
        """How many have started."""
        return len(self._ranks)

    def __getitem__(self, rank: int) -> LocalRank:
        """Find one that has started."""
        return self._ranks[rank]

    def add(self, rank: LocalRank) -> None:
        """Take in one that has started."""
        self._ranks[rank.rank] = rank

    @property
    def living(self) -> list[LocalRank]:
        """Those whose process still exists, by rank."""
        return [self._ranks[rank] for rank in sorted(self._ranks) if not self._ranks[rank].exited]

    @property
    def living_pids(self) -> dict[int, int]:
        """The pids of those whose process still exists, by rank."""
        return {each.rank: each.pid for each in self.living}

    @property
    def pids(self) -> dict[int, int]:
        """The pids of all that have started, by rank."""
        return {each.rank: each.pid for each in self}

    @property
    def leaders(self) -> list[ProcStat]:
        """The processes that get the first SIGTERM: a rank leads its own session."""
        return [each.stat for each in self if each.stat is not None]

    @property
    def all_exited(self) -> bool:
        """Whether every rank of this node has started and ended."""
        return len(self._ranks) == self.expected and not self.living
