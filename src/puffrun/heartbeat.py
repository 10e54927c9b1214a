"""A rank's heartbeat: a page of memory in a file, readable after the rank died.

The file is 4,096 bytes, little-endian:

    offset  size  what
    0       8     `PUFFBEAT`
    8       4     layout, 1
    12      4     rank
    16      8     pid
    64      960   slot 0
    1024    ...   slot 1, as long

    a slot
    0       8     calls: how often `progress()` was called, 0: never written
    8       8     at: `time.time_ns()`
    16      8     step (signed)
    24      4     length of the metrics
    28      4     CRC-32 of calls, at, step, length and metrics
    32      ...   metrics: a JSON object of numbers, UTF-8

The writer fills the slot that is not the newest, so a reader, or a death in the middle of a
write, finds the other one whole. Standard library only: the launcher reads, the ranks write.
"""

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SIZE = 4096
MAGIC = b"PUFFBEAT"
LAYOUT = 1
HEADER = struct.Struct("<8sIIQ")
SLOTS = (64, 1024)
SLOT_BYTES = 960
BODY = struct.Struct("<QQqI")
CRC = struct.Struct("<I")
METRICS_AT = BODY.size + CRC.size
MAX_METRICS_BYTES = SLOT_BYTES - METRICS_AT


@dataclass(frozen=True)
class Heartbeat:
    """The last thing a rank said of its progress; `at` is `time.time_ns()` of its node."""

    rank: int
    pid: int
    calls: int
    at: int
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Read a rank's newest heartbeat; None when there is none."""
    try:
        page = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(page) < SIZE:
        return None
    magic, layout, rank, pid = HEADER.unpack_from(page)
    if magic != MAGIC or layout != LAYOUT:
        return None
    beats = [beat for start in SLOTS if (beat := _read_slot(page, start, rank, pid)) is not None]
    return max(beats, key=lambda beat: beat.calls, default=None)


def _read_slot(page: bytes, start: int, rank: int, pid: int) -> Heartbeat | None:
    """Read a slot; None when it was never written, or not to its end."""
    body = page[start : start + BODY.size]
    calls, at, step, length = BODY.unpack(body)
    (crc,) = CRC.unpack_from(page, start + BODY.size)
    if calls == 0 or length > MAX_METRICS_BYTES:
        return None
    metrics = page[start + METRICS_AT : start + METRICS_AT + length]
    if zlib.crc32(metrics, zlib.crc32(body)) != crc:
        return None
    return Heartbeat(rank, pid, calls, at, step, json.loads(metrics))


class HeartbeatPage:
    """The writer's end. Writing is a few stores into memory, no system call."""

    def __init__(self, path: Path, rank: int) -> None:
        """Create the page anew.

        Raises:
            OSError: it cannot be created, or there is no room: a hole would be a SIGBUS later.
        """
        path.parent.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, SIZE)
            self._page = mmap.mmap(descriptor, SIZE)
        finally:
            os.close(descriptor)
        HEADER.pack_into(self._page, 0, MAGIC, LAYOUT, rank, os.getpid())

    def write(self, calls: int, at: int, step: int, metrics: bytes) -> None:
        """Write one heartbeat; `metrics` is a JSON object of at most `MAX_METRICS_BYTES`."""
        start = SLOTS[calls % 2]
        body = BODY.pack(calls, at, step, len(metrics))
        crc = CRC.pack(zlib.crc32(metrics, zlib.crc32(body)))
        end = start + METRICS_AT + len(metrics)
        self._page[start:end] = body + crc + metrics
