"""torch's flight recorder: which collectives a rank enqueued, and which of them have ended.

The format is torch's own (version 2.x of the recorder). Seen on gloo: `state` never changes and
`pg_config` is empty; so `retired`, `pg_status` and the rank's own journal are what counts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SAME_SHAPES = ("all_reduce", "allreduce", "broadcast", "all_gather", "allgather")
_STATUS = '"pg_status":'


@dataclass(frozen=True)
class Collective:
    """One operation of one rank in one process group; `seq` counts from 1 in each group."""

    group: str
    seq: int
    op: str
    backend: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    created_at: int
    is_done: bool
    is_p2p: bool = False

    @property
    def common_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes that have to be the same on all ranks; () where they may differ by rank."""
        return self.shapes if any(op in self.op for op in SAME_SHAPES) else ()


@dataclass(frozen=True)
class FlightRecord:
    """A rank's newest collectives, oldest first; per group the last one enqueued and completed."""

    collectives: tuple[Collective, ...] = ()
    enqueued: Mapping[str, int] = field(default_factory=dict)
    completed: Mapping[str, int] = field(default_factory=dict)

    def find_oldest_open(self) -> Collective | None:
        """Find the oldest collective that has not ended."""
        return next((each for each in self.collectives if not each.is_done), None)

    def find_last(self, group: str | None = None) -> Collective | None:
        """Find the newest collective, of one group or of all."""
        mine = [c for c in self.collectives if group is None or c.group == group]
        return mine[-1] if mine else None


def parse_flight_record(text: str) -> FlightRecord | None:
    """Read `fr_trace_json`; None when it is not that, or of a kind that we do not know."""
    try:
        document = json.loads(text)
        status: dict[str, Any] = document.get("pg_status", {})
        return FlightRecord(
            tuple(_read_entry(entry) for entry in document.get("entries", [])),
            {name: int(each["last_enqueued_collective"]) for name, each in status.items()},
            {name: int(each["last_completed_collective"]) for name, each in status.items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def merge_records(records: list[FlightRecord]) -> FlightRecord | None:
    """Join what the recorders of several backends hold, in the order of time."""
    if not records:
        return None
    collectives = [each for record in records for each in record.collectives]
    return FlightRecord(
        tuple(sorted(collectives, key=lambda each: each.created_at)),
        {name: seq for record in records for name, seq in record.enqueued.items()},
        {name: seq for record in records for name, seq in record.completed.items()},
    )


def parse_counters(text: str) -> dict[str, tuple[int, int]] | None:
    """Read only (enqueued, completed) of each group, without parsing megabytes of entries."""
    start = text.rfind(_STATUS)
    try:
        status, _ = json.JSONDecoder().raw_decode(text, start + len(_STATUS))
        return {
            name: (int(each["last_enqueued_collective"]), int(each["last_completed_collective"]))
            for name, each in status.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _read_entry(entry: dict[str, Any]) -> Collective:
    backend, _, op = str(entry["profiling_name"]).rpartition(":")
    is_p2p = bool(entry.get("is_p2p"))
    return Collective(
        group=str(entry["process_group"][0]),
        seq=int(entry["p2p_seq_id" if is_p2p else "collective_seq_id"]),
        op=op,
        backend=backend,
        shapes=tuple(tuple(map(int, size)) for size in entry["input_sizes"]),
        dtypes=tuple(map(str, entry["input_dtypes"])),
        created_at=int(entry["time_created_ns"]),
        is_done=bool(entry["retired"]) or entry.get("state") == "completed",
        is_p2p=is_p2p,
    )


@dataclass(frozen=True)
class Journal:
    """What a rank wrote of itself: members by group name; why it does not answer, if so."""

    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    answers: bool = False
    reason: str = "it has not imported torch, or Python ran without site (-S, -I, -E)"


def read_journal(path: Path) -> Journal:
    """Read a rank's journal; a line that is torn or unknown is left out."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Journal()
    groups: dict[str, tuple[int, ...]] = {}
    journal = Journal(groups)
    for line in lines:
        try:
            entry = json.loads(line)
            if "group" in entry:
                groups[str(entry["group"])] = tuple(map(int, entry["ranks"]))
            elif "server" in entry:
                journal = Journal(groups, bool(entry["server"]), str(entry.get("reason", "")))
        except (ValueError, TypeError, KeyError):
            continue
    return journal
