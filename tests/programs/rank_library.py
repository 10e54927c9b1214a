"""What programs do with the in-rank library, and how it goes wrong: argv[1] says which."""

import os
import subprocess
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


def meet_in_child() -> str:
    program = (
        "from puffrun import barrier, run_once; barrier('x'); print(run_once(lambda: 'alone'))"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout


def start_children() -> None:
    if RANK == 1:
        meet_in_child()  # before the rank has met anybody
        pid = os.fork()
        if pid == 0:
            barrier("fork", timeout_s=60)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    barrier("between")
    assert run_once(meet_in_child) == "alone\n"


def beat() -> None:
    with checkpoint(Path(sys.argv[2]), step=41) as path:
        (path / f"rank-{RANK}").write_text("weights")
    for step in range(50):
        progress(step, loss=1 / (step + 1))
    with agree("epoch"):
        if RANK == 1:
            raise ValueError("loss is NaN")


if __name__ == "__main__":
    {
        "build": build,
        "leave": leave,
        "die": die,
        "miss": miss,
        "differ": differ,
        "children": start_children,
        "beat": beat,
    }[sys.argv[1]]()
