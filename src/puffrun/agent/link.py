"""The agent's end of the link to the launcher: a socket, inherited by number, JSON lines.

From the launcher: one `AgentRequest`, then `{"go": {"env": {...}}}`. To the launcher: `ready`,
`started`, `exited`, `crashed`.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AgentRequest:
    """What to launch. `stdio`: (stdin, stdout, stderr) descriptors, one triple a local rank."""

    run_id: str
    argv: list[str]
    ranks_per_node: int
    nodes: int
    node_rank: int
    master_addr: str
    master_port: int | None  # None: any free port (one node)
    log_dir: str
    attempt: int  # the ranks' TORCHELASTIC_RESTART_COUNT: each attempt has a fresh agent
    inject_dir: str  # first on the ranks' PYTHONPATH: rank/inject/sitecustomize.py
    stdio: list[list[int]]
    preload: bool  # fork the ranks from a process that has imported torch, where that is possible


class Link:
    """The socket to the launcher; may be used from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()
        self.on_exit: Callable[[int, int], None] | None = None

    def receive(self) -> dict[str, Any]:
        """Wait for the next message.

        Raises:
            EOFError: the launcher is gone; the guardian is about to end this process.
        """
        line = self._file.readline()
        if not line:
            raise EOFError("the launcher is gone")
        message: dict[str, Any] = json.loads(line)
        return message

    def say(self, message: dict[str, Any]) -> None:
        """Send one message; a launcher that is gone needs none."""
        with self._lock:
            try:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                return

    def say_started(self, rank: int, local_rank: int, pid: int) -> None:
        """Report that a rank exists."""
        self.say({"started": rank, "local_rank": local_rank, "pid": pid, "at": time.time_ns()})

    def say_exited(self, rank: int, pid: int, returncode: int) -> None:
        """Report a rank's exact status, as subprocess has it."""
        self.say({"exited": rank, "pid": pid, "returncode": returncode, "at": time.time_ns()})
        if self.on_exit is not None:
            self.on_exit(rank, returncode)

    def close(self) -> None:
        """Close this process' end, so that the launcher sees the end of the agent itself."""
        self._file.close()
        self._connection.close()
