"""One rank (argv[1]) fails in one way (argv[2]); the others wait for ever, without torch."""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

RANK = int(os.environ["RANK"])


def wait_for_ever() -> None:
    threading.Event().wait(3600)


def raise_deep() -> None:
    raise ValueError("expected 64 observations, got 63")


def raise_chained() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise RuntimeError("outer") from error


def raise_group() -> None:
    raise ExceptionGroup("many", [ValueError("a"), TypeError("b")])


def raise_with_thread() -> None:
    threading.Thread(target=wait_for_ever, daemon=False).start()
    raise RuntimeError("the main thread is done for, a non-daemon thread lives on")


def raise_with_atexit() -> None:
    import atexit

    atexit.register(wait_for_ever)
    raise RuntimeError("an atexit handler waits for ever")


def raise_with_own_hook() -> None:
    sys.excepthook = lambda *_: print("own hook", flush=True)
    raise RuntimeError("own excepthook")


def raise_bad_str() -> None:
    class BadError(Exception):
        def __str__(self) -> str:
            raise OSError("no text for you")

    raise BadError


def raise_huge() -> None:
    raise ValueError("x" * 1_000_000)


def raise_unicode() -> None:
    raise ValueError("früh\x1b[31m\x00\udcff 🏖")


def raise_keyboard() -> None:
    raise KeyboardInterrupt


def exit_text() -> None:
    sys.exit("cannot go on")


def segfault() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.string_at(0)


def raise_without_files() -> None:
    """Use up all descriptors, as a leak does."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    kept = []
    while True:
        kept.append(os.open("/dev/null", os.O_RDONLY))


def raise_of_worker() -> None:
    """What torch makes of the exception of a DataLoader's worker or a spawned process."""
    try:
        raise KeyError("bad sample")
    except KeyError:
        text = traceback.format_exc()
    raise RuntimeError(f"Caught KeyError in DataLoader worker process 0.\nOriginal {text}")


def raise_redrawn() -> None:
    raise RuntimeError("step 10\rstep 11")


def raise_unrecorded() -> None:
    """The rank may not write where exceptions are recorded."""
    shutil.rmtree(Path(os.environ["PUFFRUN_RUN_DIR"], "errors"))
    raise ValueError("lost")


def abort() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()


def leave_child_in_session() -> None:
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    os._exit(3)


def leave_double_fork() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            wait_for_ever()
        os._exit(0)
    os.wait()
    os._exit(3)


def leave_cleared_environment() -> None:
    child = subprocess.Popen(["sleep", "3600"], start_new_session=True, env={})
    Path(os.environ["PUFFRUN_RUN_DIR"], "child.pid").write_text(str(child.pid))
    os._exit(3)


def fork_while_dying() -> None:
    """A child that keeps forking children in new sessions while the kill is under way."""
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for _ in range(200):
            if os.fork() == 0:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                wait_for_ever()
            threading.Event().wait(0.01)
        wait_for_ever()
    os._exit(3)


WAYS = {
    "exit1": lambda: sys.exit(1),
    "exit7": lambda: sys.exit(7),
    "exit255": lambda: os._exit(255),
    "exit0": lambda: sys.exit(0),
    "os_exit0": lambda: os._exit(0),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "sigint": lambda: os.kill(os.getpid(), signal.SIGINT),
    "keyboard": raise_keyboard,
    "raise": raise_deep,
    **{
        name: way
        for name, way in list(globals().items())
        if callable(way)
        and name.split("_")[0] in {"raise", "exit", "segfault", "abort", "leave", "fork"}
    },
}

if __name__ == "__main__":
    print(f"rank {RANK} up", flush=True)
    if int(sys.argv[1]) == RANK:
        print("last words", end="", flush=True)
        WAYS[sys.argv[2]]()
    else:
        if "ignore-sigterm" in sys.argv:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        wait_for_ever()
