"""What a meeting of the ranks concludes from who came and with what. Pure, and without torch.

Every text here reaches all ranks as it was written once, so it must not depend on the reader.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from puffrun.naming import name_ranks

MAX_LINES = 8
MAX_MESSAGE_CHARS = 2_000


class RefusedError(Exception):
    """Raised by a decision over the ranks' values: the ranks must not go on; says why."""


@dataclass(frozen=True)
class RankError:
    """An exception of one rank, as text, because not every exception can be pickled."""

    rank: int
    type: str
    message: str
    at: str
    traceback: str = ""


@dataclass(frozen=True)
class Arrival:
    """One rank's coming to a meeting: what it calls the meeting, from where, with what."""

    rank: int
    topic: str
    at: str
    error: RankError | None = None
    value: Any = None

    def to_json(self) -> str:
        """Write one line."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "Arrival":
        """Read one line."""
        fields = json.loads(line)
        error = fields.pop("error")
        return cls(**fields, error=RankError(**error) if error else None)


@dataclass(frozen=True)
class Verdict:
    """The one answer that every rank gets: `text` is None when they may go on with `result`."""

    result: Any = None
    text: str | None = None
    errors: tuple[RankError, ...] = ()

    def to_json(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Verdict":
        """Read it from JSON."""
        fields = json.loads(text)
        return cls(
            fields["result"], fields["text"], tuple(RankError(**e) for e in fields["errors"])
        )


@dataclass(frozen=True)
class Absence:
    """What is known of ranks that did not come: `gone` (rank → how it ended), `places`, `last`."""

    waited_s: float = 0.0
    gone: Mapping[int, str] = field(default_factory=dict)
    places: Mapping[int, str] = field(default_factory=dict)
    last: Mapping[int, Arrival] = field(default_factory=dict)


Decide = Callable[[dict[int, Any]], Any]


def conclude(
    topic: str,
    arrivals: Iterable[Arrival],
    size: int,
    absence: Absence | None = None,
    decide: Decide | None = None,
) -> Verdict:
    """Conclude a meeting: errors, then different topics, who came twice, who is missing, values."""
    arrivals = sorted(arrivals, key=lambda arrival: arrival.rank)
    came = {arrival.rank: arrival for arrival in arrivals}
    failed = tuple(arrival.error for arrival in came.values() if arrival.error is not None)
    if failed:
        return Verdict(text=_tell_errors(topic, failed), errors=failed)
    if len({arrival.topic for arrival in came.values()}) > 1:
        return Verdict(text=_tell_mismatch(came, size))
    if len(came) < len(arrivals):
        return Verdict(text=_tell_twice(topic, arrivals))
    missing = [rank for rank in range(size) if rank not in came]
    if missing:
        return Verdict(text=_tell_missing(topic, came, missing, absence or Absence()))
    return _decide(topic, {rank: arrival.value for rank, arrival in came.items()}, decide)


def _decide(topic: str, values: dict[int, Any], decide: Decide | None) -> Verdict:
    if decide is None:
        return Verdict()
    try:
        return Verdict(result=decide(values))
    except RefusedError as refusal:
        return Verdict(text=f"{topic}: {refusal}")
    except Exception as error:  # noqa: BLE001  # a verdict there must be, or all the others wait
        return Verdict(text=f"{topic}: could not compare: {type(error).__name__}: {error}")


def _tell_errors(topic: str, errors: tuple[RankError, ...]) -> str:
    groups = group_ranks({error.rank: (error.type, error.message, error.at) for error in errors})
    if len(groups) == 1:
        (kind, message, at), ranks = groups[0]
        return "\n".join([f"{topic}: {name_ranks(ranks)} failed: {kind}: {message}", *_at(at)])
    head = f"{topic}: {name_ranks([error.rank for error in errors])} failed"
    lines = []
    for (kind, message, at), ranks in groups[:MAX_LINES]:
        lines += [f"  {name_ranks(ranks)}  {kind}: {message}", *_at(at, "    ")]
    return "\n".join([head, *lines, *_more(len(groups))])


def _at(place: str, indent: str = "  ") -> list[str]:
    return [f"{indent}at {place}"] if place else []


def _more(groups: int) -> list[str]:
    return [f"  … and {groups - MAX_LINES} more"] if groups > MAX_LINES else []


def _tell_mismatch(came: Mapping[int, Arrival], size: int) -> str:
    groups = group_ranks({rank: (a.topic, a.at) for rank, a in came.items()})
    told = [f"{name_ranks(ranks)} at {topic}{_in(at)}" for (topic, at), ranks in groups[:MAX_LINES]]
    first = groups[0][1]
    told[0] = told[0].replace(" at ", " is at " if len(first) == 1 else " are at ", 1)
    missing = [rank for rank in range(size) if rank not in came]
    lines = [f"  {name_ranks(missing)} had not come"] if missing else []
    rule = "  every rank has to make the same calls in the same order"
    return "\n".join([f"different calls: {', '.join(told)}", *_more(len(groups)), *lines, rule])


def _in(place: str) -> str:
    return f" ({place})" if place else ""


def _tell_twice(topic: str, arrivals: Iterable[Arrival]) -> str:
    """Two processes say that they are one rank, a rank and its child; so another did not come."""
    places: dict[int, list[str]] = {}
    for arrival in arrivals:
        places.setdefault(arrival.rank, []).append(arrival.at or "?")
    twice = {rank: where for rank, where in places.items() if len(where) > 1}
    lines = [f"  rank {rank} at {' and at '.join(w[:MAX_LINES])}" for rank, w in twice.items()]
    rule = "  one of them was started by the rank, and has its RANK and MASTER_PORT"
    head = f"{topic}: more than one process came as {name_ranks(twice)}"
    return "\n".join([head, *lines[:MAX_LINES], *_more(len(lines)), rule])


def _tell_missing(
    topic: str, came: Mapping[int, Arrival], missing: list[int], absence: Absence
) -> str:
    gone = {rank: how for rank, how in absence.gone.items() if rank in missing}
    if gone:
        how, ranks = max(group_ranks(gone), key=lambda group: len(group[1]))
        is_gone = "is gone" if len(ranks) == 1 else "are gone"
        head = f"{topic}: {name_ranks(ranks)} {is_gone} ({how}) and will not come"
    else:
        head = f"{topic}: {name_ranks(missing)} did not come within {absence.waited_s:.4g} s"
    lines = [f"  {_tell_absent(rank, absence)}" for rank in missing if rank not in gone]
    waiting = group_ranks({rank: arrival.at for rank, arrival in came.items()})
    lines = [*lines[:MAX_LINES], *_more(len(lines))]
    lines += [f"  {name_ranks(ranks)} {_verb(ranks)}{_wait_at(at)}" for at, ranks in waiting[:3]]
    return "\n".join([head, *lines])


def _verb(ranks: list[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"


def _wait_at(place: str) -> str:
    return f" at {place}" if place else ""


def _tell_absent(rank: int, absence: Absence) -> str:
    if rank in absence.places:
        return f"rank {rank} is at {absence.places[rank]}"
    known = absence.last.get(rank)
    last = f"; it was last seen at {known.topic}{_in(known.at)}" if known else ""
    return f"rank {rank} does not answer{last}"


def group_ranks(values: Mapping[int, Any]) -> list[tuple[Any, list[int]]]:
    """Group ranks by equal values, the smallest group first; of equal ones the highest ranks."""
    groups: dict[str, tuple[Any, list[int]]] = {}
    for rank in sorted(values):
        key = json.dumps(values[rank], sort_keys=True, default=str)
        groups.setdefault(key, (values[rank], []))[1].append(rank)
    return sorted(groups.values(), key=lambda group: (len(group[1]), -group[1][0]))
