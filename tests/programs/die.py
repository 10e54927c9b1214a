"""Rank 1 notes the time and falls (argv[1]) once every rank is up: the benchmark of endings."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
WAY, HERE = sys.argv[1], Path(sys.argv[2])


def fall() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    (HERE / "fell").write_text(str(time.monotonic_ns()))
    if WAY == "exception":
        raise ValueError("the true cause")
    if WAY == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    if WAY == "SIGSEGV":
        ctypes.string_at(0)
    os._exit(0 if WAY == "exit-0" else 3)


if __name__ == "__main__":
    if WAY == "ignore-SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if WAY == "session-children":
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
    (HERE / f"up-{RANK}").touch()
    while len(list(HERE.glob("up-*"))) < WORLD:
        time.sleep(0.01)
    if RANK == 1:
        fall()
    threading.Event().wait(3600)
