"""Writing a file so that nobody ever reads a part of it."""

import os
from contextlib import suppress
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, never a part.

    That holds after a loss of power too. When it fails, nothing of it stays behind.

    Raises:
        OSError: the file could not be written.
    """
    temporary_path = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary_path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary_path.replace(path)
    except OSError:
        with suppress(OSError):
            temporary_path.unlink()
        raise
