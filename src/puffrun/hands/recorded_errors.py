"""Reads the exceptions that the ranks have recorded (errors/rank-N.json)."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress

from puffrun.outcome import ErrorRecord, Frame
from puffrun.rundir import RunDir


def read_error(run_dir: RunDir, rank: int) -> ErrorRecord | None:
    """Read the exception that a rank recorded, if it did."""
    try:
        document = json.loads(run_dir.error_path(rank).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    frames = tuple(Frame(**frame) for frame in document.pop("frames"))
    return ErrorRecord(**document, frames=frames)


def read_errors(run_dir: RunDir, rank_pids: Mapping[int, int]) -> dict[int, ErrorRecord]:
    """Read the exceptions that these processes have recorded (`rank_pids`: rank → pid)."""
    found = {rank: read_error(run_dir, rank) for rank in rank_pids}
    return {
        rank: error
        for rank, error in found.items()
        if error is not None and error.pid == rank_pids[rank]
    }


def empty_fifo(fd: int) -> None:
    """Take what the ranks have written to wake us; it may have been taken before."""
    with suppress(BlockingIOError):
        os.read(fd, 4096)
