"""Ranks say `ready` and stay, as argv asks: `ignore-sigterm`, `children`, `exit0-on-sigterm`, …"""

import os
import signal
import subprocess
import sys
import threading

RANK = int(os.environ["RANK"])


def leave(signum: int, _frame: object) -> None:
    print(f"rank {RANK} got {signal.Signals(signum).name}", flush=True)
    os._exit(0)


def note(signum: int, _frame: object) -> None:
    print(f"rank {RANK} got {signal.Signals(signum).name}", flush=True)


if __name__ == "__main__":
    if "ignore-sigterm" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "exit0-on-sigterm" in sys.argv:
        signal.signal(signal.SIGTERM, leave)
    if "note-usr" in sys.argv:
        signal.signal(signal.SIGUSR1, note)
        signal.signal(signal.SIGUSR2, note)
    if "children" in sys.argv:
        subprocess.Popen(["sleep", "3600"])
        subprocess.Popen(["sleep", "3600"], start_new_session=True)
    if "read-stdin" in sys.argv:
        print(f"rank {RANK} read {sys.stdin.read()!r}", flush=True)
    print("ready", flush=True)
    if "finish" not in sys.argv:
        while True:
            threading.Event().wait(0.2)
