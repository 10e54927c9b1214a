"""Rank 1's env worker crashes; the rank spins for ever, as a vectorised environment does."""

import ctypes
import multiprocessing
import os
import resource
import sys
import threading
import time

RANK = int(os.environ["RANK"])


def work(how: str) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if how == "segv":
        ctypes.string_at(0)
    if how == "exit3":
        os._exit(3)
    if how == "exit0":
        os._exit(0)
    threading.Event().wait(3600)


if __name__ == "__main__":
    hows = ["stay", sys.argv[1] if RANK == 1 else "stay"]
    workers = [multiprocessing.get_context("fork").Process(target=work, args=(h,)) for h in hows]
    for worker in workers:
        worker.start()
    print("ready", flush=True)
    end = time.monotonic() + (4 if sys.argv[1] == "exit0" else 3600)
    while time.monotonic() < end:
        time.sleep(0.001)
    for worker in workers:
        worker.kill()
        worker.join()
