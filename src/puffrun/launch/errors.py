"""Reads the exceptions that the ranks have recorded (errors/rank-N.json)."""

import json
import os
from contextlib import suppress

from puffrun.outcome import ErrorRecord, Frame
from puffrun.rundir import RunDir
from puffrun.watch import WatchState


def read_error(run_dir: RunDir, rank: int) -> ErrorRecord | None:
    """Read the exception that a rank recorded, if it did."""
    try:
        document = json.loads(run_dir.error_path(rank).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    frames = tuple(Frame(**frame) for frame in document.pop("frames"))
    return ErrorRecord(**document, frames=frames)


def read_errors(run_dir: RunDir, state: WatchState) -> dict[int, ErrorRecord]:
    """Read the exceptions that the ranks of this attempt have recorded."""
    found = {rank: read_error(run_dir, rank) for rank in state.ranks}
    return {
        rank: error
        for rank, error in found.items()
        if error is not None and error.pid == state.ranks[rank].pid
    }


def empty_fifo(fd: int) -> None:
    """Take what the ranks have written to wake us; it may have been taken before."""
    with suppress(BlockingIOError):
        os.read(fd, 4096)
