"""Checkpoints that are whole or not there: a kill at any moment cannot leave half of one."""

import os
from pathlib import Path
from typing import Any

import torch


def save_checkpoint(state: dict[str, Any], directory: Path, update: int) -> Path:
    """Write `state` beside its final name, make sure that it is on disk, then rename it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"update-{update:05d}.pt"
    temporary_path = directory / f".{path.name}.tmp"
    with temporary_path.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary_path.replace(path)
    sync_directory(directory)
    return path


def find_newest_checkpoint(directory: Path) -> Path | None:
    """Find the checkpoint with the highest update number."""
    return max(directory.glob("update-*.pt"), default=None)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def sync_directory(directory: Path) -> None:
    """Make a rename last through a power loss."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
