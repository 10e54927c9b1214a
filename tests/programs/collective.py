"""Ranks all_reduce in a loop on gloo; rank argv[1] leaves it in one way (argv[2]).

argv[3]: the time limit of a collective, in seconds.
"""

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])


def raise_error() -> None:
    raise ValueError("the true cause")


def raise_then_clean_up() -> None:
    """The peers die of the closed connection while the culprit still cleans up."""
    try:
        raise ValueError("the true cause")
    finally:
        dist.destroy_process_group()
        threading.Event().wait(1.0)


def raise_with_thread() -> None:
    threading.Thread(target=lambda: threading.Event().wait(3600), daemon=False).start()
    raise ValueError("the true cause")


def other_shape() -> None:
    dist.all_reduce(torch.ones(8))


def catch_and_exit() -> None:
    """What programs with a broad handler do: log the error, leave with a code."""
    try:
        raise ValueError("the true cause")
    except ValueError:
        sys.exit(5)


WAYS = {
    "raise": raise_error,
    "raise-then-clean-up": raise_then_clean_up,
    "raise-with-thread": raise_with_thread,
    "exit0": lambda: sys.exit(0),
    "os-exit0": lambda: os._exit(0),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "other-shape": other_shape,
    "catch-and-exit": catch_and_exit,
    "sleep": lambda: time.sleep(3600),
    "never": lambda: None,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    limit_s = int(sys.argv[3]) if sys.argv[3:] else 60
    dist.init_process_group("gloo", timeout=timedelta(seconds=limit_s))
    for step in range(1_000_000):
        if step == 3 and int(sys.argv[1]) == RANK:
            WAYS[sys.argv[2]]()
        dist.all_reduce(torch.ones(4))
        if step == 0:
            print(f"rank {RANK} reduces", flush=True)
        time.sleep(0.01)
