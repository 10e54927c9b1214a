"""The run's event log: one JSON object a line, written as things happen."""

import json
import os
import time
from pathlib import Path
from typing import Any


class EventLog:
    """Appends events; a disk that is full costs the log, not the run."""

    def __init__(self, path: Path, node: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._node = node
        self.failed: str | None = None

    def write(self, kind: str, **fields: Any) -> None:
        """Append one event, in one write."""
        event = {"at": time.time_ns(), "node": self._node, "kind": kind, **fields}
        try:
            os.write(self._fd, json.dumps(event, default=str).encode() + b"\n")
        except OSError as error:
            self.failed = error.strerror

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
