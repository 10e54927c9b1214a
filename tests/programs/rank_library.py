"""What programs do with the in-rank library, and how it goes wrong: argv[1] says which."""

import os
import sys
import threading
import time
from pathlib import Path

from puffrun import agree, barrier, checkpoint, progress, run_once

RANK = int(os.environ["RANK"])


def fail_to_build() -> None:
    raise OSError("no space left on device")


def build() -> None:
    barrier("start")
    print(f"calls at {time.time():.3f}", flush=True)
    try:
        run_once(fail_to_build)
    except Exception as error:
        print(f"raised at {time.time():.3f}\n{type(error).__name__}: {error}", flush=True)
        raise


def leave() -> None:
    barrier("start")
    if RANK == 1:
        sys.exit(0)
    barrier("end")


def die() -> None:
    barrier("start")
    if RANK == 1:
        os.abort()
    barrier("end")


def miss() -> None:
    barrier("start")
    if RANK == 1:
        stay_in_save()
    barrier("end", timeout_s=1)


def stay_in_save() -> None:
    threading.Event().wait(3600)


def differ() -> None:
    barrier("save" if RANK == 1 else "eval")


def beat() -> None:
    with checkpoint(Path(sys.argv[2]), step=41) as path:
        (path / f"rank-{RANK}").write_text("weights")
    for step in range(50):
        progress(step, loss=1 / (step + 1))
    with agree("epoch"):
        if RANK == 1:
            raise ValueError("loss is NaN")


if __name__ == "__main__":
    {"build": build, "leave": leave, "die": die, "miss": miss, "differ": differ, "beat": beat}[
        sys.argv[1]
    ]()
