"""Each local rank ends in a way of its own, without torch; what is printed and how is compared."""

import atexit
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path


class LocalError(Exception):
    """An exception of `__main__`."""


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    raise LocalError("deep down")


def chained() -> None:
    try:
        deep(1)
    except LocalError as error:
        raise RuntimeError("outer") from error


def own_hook() -> None:
    def hook(kind: type, value: BaseException, trace: object) -> None:
        names = []
        while trace is not None:
            names.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        print("own hook", kind.__name__, value, names, value.__traceback__ is not None)

    sys.excepthook = hook
    deep(0)


def at_exit() -> None:
    atexit.register(print, "atexit 1")
    thread = threading.Timer(0.2, print, ["the thread has ended"])
    thread.start()
    atexit.register(print, "atexit 2")
    print("the main thread has ended")


def failing_at_exit() -> None:
    atexit.register(deep, 0)


def in_thread() -> None:
    thread = threading.Thread(target=deep, args=(0,), name="worker")
    thread.start()
    thread.join()


def handled_signal() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(21))
    os.kill(os.getpid(), signal.SIGTERM)


def keyboard_then_code() -> None:
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        sys.exit(9)


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()


def forked() -> None:
    pid = os.fork()
    if pid == 0:
        sys.exit(5)
    print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    deep(0)


def compiled() -> None:
    compile("def f(:\n", "nowhere.py", "exec")


def half_a_line() -> None:
    sys.stdout.write("no newline at the end")
    sys.stderr.write("nor here")
    os._exit(8)


def unflushed() -> None:
    sys.unflushed = os.fdopen(os.dup(1), "w")  # with a buffer, and closed by nobody
    sys.unflushed.write("Python's buffer\n")
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    libc.fputs(b"C's buffer\n", ctypes.c_void_p(libc.fdopen(os.dup(1), b"w")))
    deep(0)


LIBRARIES = {
    "destructor": """
        #include <stdio.h>
        __attribute__((destructor)) static void end(void) { puts("the destructor"); }
    """,
    "handler": """
        #include <stdio.h>
        #include <stdlib.h>
        static void end(void) { puts("the exit handler"); }
        __attribute__((constructor)) static void begin(void) { atexit(end); }
    """,
    "static": """
        #include <cstdio>
        struct Static { ~Static() { std::puts("the static"); } } object;
    """,
    "silent": "int answer(void) { return 42; }",
}


def with_library(name: str, *, keeps: bool = True, code: int = 0) -> None:
    """Load a library that is compiled on the spot; its file may be gone by the end."""
    with tempfile.TemporaryDirectory() as directory:
        library = Path(directory if not keeps else ".") / f"{name}-{os.getpid()}.so"
        compiler = ["g++", "-xc++"] if name == "static" else ["gcc", "-xc"]
        subprocess.run(
            [*compiler, "-shared", "-fPIC", "-", "-o", library],
            input=LIBRARIES[name],
            text=True,
            check=True,
        )
        ctypes.CDLL(str(library.resolve()))
    sys.exit(code)


WAYS = [
    lambda: None,
    sys.exit,
    lambda: sys.exit(0),
    lambda: sys.exit(7),
    lambda: sys.exit(-1),
    lambda: sys.exit(256 + 3),
    lambda: sys.exit("a text"),
    lambda: sys.exit((1, "tuple")),
    lambda: deep(3),
    chained,
    own_hook,
    at_exit,
    failing_at_exit,
    in_thread,
    handled_signal,
    keyboard_then_code,
    interrupted,
    forked,
    compiled,
    half_a_line,
    lambda: warnings.warn("a warning", stacklevel=1),
    lambda: os.kill(os.getpid(), signal.SIGTERM),
    os.abort,
    lambda: print("\N{SNOWMAN}", file=sys.stderr),
    lambda: print(input("? ")),
    lambda: print(int(sys.stdin.isatty()), sys.stdin.read()),
    unflushed,
    lambda: with_library("destructor", keeps=False),
    lambda: with_library("destructor"),
    lambda: with_library("handler", code=4),
    lambda: with_library("static"),
    lambda: with_library("silent", code=5),
    lambda: ctypes.CDLL(None).exit(6),
]

if __name__ == "__main__":
    WAYS[int(os.environ["LOCAL_RANK"])]()
