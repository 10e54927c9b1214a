"""Rank 1 moves into the cgroup argv[1] and takes memory until the kernel kills it."""

import os
import sys
import threading
from pathlib import Path

if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
        eaten = []
        while True:
            eaten.append(bytearray(b"x" * (8 << 20)))
    threading.Event().wait(3600)
