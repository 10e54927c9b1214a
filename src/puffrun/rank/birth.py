"""What a forked rank does first: become what a freshly started process would be.

Runs in a copy of a process that has imported torch, before any code of the program. What cannot
be made new is in docs/preload.md: the hash seed, the memory layout, and what torch has read from
the environment when it was imported.
"""

import fcntl
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

ABOVE_STDIO = 10  # descriptors are moved up here before 0, 1 and 2 are replaced


@dataclass(frozen=True)
class Birth:
    """A rank that is about to be. `argv` is (python, "-u", script or "-m" module, ...)."""

    rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdio: tuple[int, int, int]
    signal_mask: frozenset[int]


def become_rank(birth: Birth) -> None:
    """Take the rank's session, streams, environment and signals; make new what must differ."""
    os.setsid()
    _take_descriptors(birth.stdio)
    os.environ.clear()
    # as in a rank that was executed: who its parent is, so that its own children can be told apart
    os.environ.update({**birth.env, "PUFFRUN_AGENT_PID": str(os.getppid())})
    _reset_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, birth.signal_mask)
    _open_text_streams()
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # noqa: SLF001  # as multiprocessing does after a fork
    _forget()
    _show_command(birth.argv)


def _take_descriptors(stdio: tuple[int, int, int]) -> None:
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE_STDIO) for fd in stdio]
    for fd in set(stdio):
        os.close(fd)
    for target, fd in enumerate(moved):
        os.dup2(fd, target)
        os.close(fd)


def _reset_signals() -> None:
    """Take the agent's handlers away; what is ignored stays ignored, as it does over an exec."""
    for signum in signal.valid_signals():
        if callable(signal.getsignal(signum)):
            fresh = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
            signal.signal(signum, fresh)


def _open_text_streams() -> None:
    """Make sys.stdin, stdout and stderr as `python -u` makes them, for the new descriptors."""
    sys.stdin = sys.__stdin__ = _open_text(0, sys.stdin, "r")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _open_text(1, sys.stdout, "w")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _open_text(2, sys.stderr, "w")  # type: ignore[misc]


def _open_text(fd: int, like: Any, mode: str) -> io.TextIOWrapper:
    binary: IO[bytes] = open(fd, f"{mode}b", buffering=-1 if mode == "r" else 0, closefd=False)  # noqa: SIM115
    raw: Any = getattr(binary, "raw", binary)
    raw.name = like.name  # "<stdout>"
    text: Any = io.TextIOWrapper(
        binary,
        encoding=like.encoding,
        errors=like.errors,
        newline=None if mode == "r" else "\n",
        write_through=True,
    )
    text.mode = mode
    wrapper: io.TextIOWrapper = text
    return wrapper


def _show_command(argv: Sequence[str]) -> None:
    """Let `ps` and `nvidia-smi` show the program: write over the agent's own arguments.

    There is as much room as those took; the names of directories go first, then the tail.
    """
    import ctypes

    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123  # as elsewhere
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    room = end - start
    words = [os.fsencode(word) for word in argv]
    for number in (0, 2):  # python, then the script
        if len(b"\0".join(words)) >= room:
            words[number] = os.path.basename(words[number])  # noqa: PTH119  # bytes
    text = b"\0".join(words)[: room - 1]
    ctypes.memmove(start, text.ljust(room, b"\0"), room)


def _forget() -> None:
    """Make new what a process draws once: `random` does so by itself after a fork."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.current_process().authkey = os.urandom(32)
    importlib.invalidate_caches()  # files may have come since the zygote looked
