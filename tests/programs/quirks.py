"""Two ranks and one odd thing that real programs do: argv[1] says which. Without torch."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
RUN_DIR = Path(os.environ["PUFFRUN_RUN_DIR"])
GLOO_VICTIM = "RuntimeError: [../third_party/gloo/pair.cc:534] Connection closed by peer"
NCCL_VICTIM = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)"


def wait_for_ever() -> None:
    threading.Event().wait(3600)


def wait_until(is_so) -> None:
    end = time.monotonic() + 60
    while not is_so() and time.monotonic() < end:
        time.sleep(0.001)


def flood() -> None:
    """Rank 0 never stops writing; rank 1 fails meanwhile."""
    if RANK == 0:
        while True:
            os.write(1, b"flood " * 10_000 + b"\n")
    wait_until(lambda: (RUN_DIR / "logs" / "rank-0.log").stat().st_size > 1_000_000)
    sys.exit(7)


def raise_one_after_the_other() -> None:
    """Both raise, and the launcher may see them at once."""
    if RANK == 0:
        wait_until((RUN_DIR / "errors" / "rank-1.json").exists)
        raise ValueError("the second")
    raise ValueError("the first")


def abort_like_nccl() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if RANK == 0:
        print(NCCL_VICTIM, flush=True)
        os.abort()
    time.sleep(1)
    sys.exit(3)


def fill_disk() -> None:
    """Rank 1 leaves no byte free in the run directory, and raises."""
    if RANK == 0:
        wait_for_ever()
    file = os.open(RUN_DIR / "big", os.O_CREAT | os.O_WRONLY)
    size = 1 << 14
    while size:
        try:
            os.write(file, b"x" * size)
        except OSError:
            size //= 2
    raise ValueError("the true cause")


def fail_late() -> None:
    """The victim is long gone when the culprit, which cleans up, fails."""
    if RANK == 0:
        print(GLOO_VICTIM, flush=True)
        sys.exit(1)
    time.sleep(2)
    raise ValueError("the true cause")


def outlive_first_thread() -> None:
    """A child whose first thread has ended is a zombie by name, and alive."""
    if RANK == 1:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            threading.Thread(target=wait_for_ever).start()
            ctypes.CDLL(None).syscall(60, 0)
        (RUN_DIR / "child.pid").write_text(str(child))
        wait_until(lambda: ") Z" in Path(f"/proc/{child}/stat").read_text())
        os._exit(3)
    wait_for_ever()


def native_thread_raises() -> None:
    """Code that a native thread runs fails there; the rank goes on."""
    import _thread

    _thread.start_new_thread(ctypes.pythonapi.PyRun_SimpleString, (b"1/0",))
    while _thread._count():
        time.sleep(0.01)


def remove_run_dir() -> None:
    if RANK == 1:
        subprocess.run(["rm", "-rf", str(RUN_DIR)], check=True)
        sys.exit(7)
    wait_for_ever()


if __name__ == "__main__":
    print(f"rank {RANK} up", flush=True)
    globals()[sys.argv[1]]()
