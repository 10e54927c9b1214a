"""Who makes the others wait: from when each rank came to the same collectives.

The flight recorder holds a rank's newest collectives with the time at which each was enqueued.
Whoever comes last is waited for; how long, is the others' time until then. Only collectives that
every rank of this machine has in its record are counted, each once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puffrun.diagnose.waits import find_position
from puffrun.evidence.rank_evidence import RankEvidence
from puffrun.naming import name_ranks

WORTH_SHARE = 0.05  # of the run spent waiting, below which nothing is said
FAIR_FACTOR = 1.5  # how much more often than by chance a rank must be last to be named
ENOUGH = 20  # collectives


@dataclass(frozen=True)
class Lateness:
    """Sums over the collectives seen. `waited_s` is a rank's mean wait, `span_s` the time covered.

    `last` counts how often each rank came last; `places` how often ranks were seen waiting where.
    """

    collectives: int = 0
    waited_s: float = 0.0
    span_s: float = 0.0
    last: Mapping[int, int] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)
    seen_until: int = 0  # time.time_ns()

    @property
    def share(self) -> float:
        """The part of the time that was spent waiting for whoever was last."""
        return min(self.waited_s / self.span_s, 1.0) if self.span_s > 0 else 0.0

    def find_slowest(self) -> int | None:
        """Find the rank that is last clearly more often than by chance."""
        if self.collectives < ENOUGH or not self.last:
            return None
        rank, times = max(self.last.items(), key=lambda item: item[1])
        fair = self.collectives / max(len(self.last), 2)
        return rank if times > FAIR_FACTOR * fair else None

    def describe(self) -> str:
        """Say it in a sentence, "" when it is not worth one."""
        if self.share < WORTH_SHARE or self.collectives < ENOUGH:
            return ""
        slowest = self.find_slowest()
        percent = f"{100 * self.share:.0f} % of the time"
        where = f", mostly in {max(self.places.items(), key=_count)[0]}" if self.places else ""
        if slowest is None:
            return f"{percent} was spent waiting in collectives{where}"
        last = f"{100 * self.last[slowest] / self.collectives:.0f} % of the collectives"
        return f"{name_ranks((slowest,))} was last in {last}; {percent} was spent waiting{where}"

    def as_dict(self) -> dict[str, Any]:
        """Return it as report.json has it (`waiting`)."""
        return {
            "text": self.describe(),
            "slowest_rank": self.find_slowest(),
            "share": round(self.share, 4),
            "waited_s": round(self.waited_s, 3),
            "span_s": round(self.span_s, 3),
            "collectives": self.collectives,
            "last": {str(rank): times for rank, times in sorted(self.last.items())},
            "places": dict(self.places),
        }


def _count(item: tuple[str, int]) -> int:
    return item[1]


def add_lateness(
    sum_so_far: Lateness, evidence: Iterable[RankEvidence], cwd: Path, world_size: int
) -> Lateness:
    """Add what one look at the living ranks tells."""
    ranks = [each for each in evidence if each.record is not None]
    arrivals = _collect_arrivals(ranks, sum_so_far.seen_until)
    common = {key: times for key, times in arrivals.items() if len(times) == len(ranks)}
    last, places = dict(sum_so_far.last), dict(sum_so_far.places)
    for rank in (each.rank for each in ranks):
        last.setdefault(rank, 0)
    waited_ns = 0.0
    for times in common.values():
        latest = max(times.values())
        waited_ns += sum(latest - at for at in times.values()) / len(times)
        last[max(times, key=lambda rank: times[rank])] += 1
    for place in _find_places(ranks, cwd, world_size):
        places[place] = places.get(place, 0) + 1
    instants = [at for times in common.values() for at in times.values()]
    span_ns = max(instants) - min(instants) if len(ranks) > 1 and instants else 0
    return Lateness(
        collectives=sum_so_far.collectives + (len(common) if len(ranks) > 1 else 0),
        waited_s=sum_so_far.waited_s + waited_ns / 1e9,
        span_s=sum_so_far.span_s + span_ns / 1e9,
        last=last,
        places=places,
        seen_until=max(instants, default=sum_so_far.seen_until),
    )


def _collect_arrivals(
    ranks: Iterable[RankEvidence], since: int
) -> dict[tuple[tuple[int, ...], int], dict[int, int]]:
    """Put together when each rank came to (members, sequence number)."""
    arrivals: dict[tuple[tuple[int, ...], int], dict[int, int]] = {}
    for each in ranks:
        for collective in each.record.collectives if each.record else ():
            if collective.is_p2p or collective.created_at <= since:
                continue
            members = each.journal.groups.get(collective.group, ())
            arrivals.setdefault((members, collective.seq), {})[each.rank] = collective.created_at
    return arrivals


def _find_places(ranks: Iterable[RankEvidence], cwd: Path, world_size: int) -> list[str]:
    """Name the call sites at which ranks wait at this moment: `barrier at train.py:60 in main`."""
    waits = (find_position(each, cwd, world_size).wait for each in ranks)
    return [f"{wait.op} at {wait.place}" for wait in waits if wait is not None and wait.place]
