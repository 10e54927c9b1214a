"""Python stacks as values, from faulthandler's text and from py-spy's JSON."""

import json
import linecache
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from puffrun.outcome import Frame

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_CURRENT = "Current thread "
_FATAL = "Fatal Python error: "
_MAIN = "MainThread"


@dataclass(frozen=True)
class ThreadStack:
    """One thread's frames, innermost first. `owns_gil` is only known from py-spy."""

    frames: tuple[Frame, ...]
    is_main: bool = False
    owns_gil: bool = False


def parse_faulthandler(text: str) -> tuple[ThreadStack, ...]:
    """Read what `faulthandler.dump_traceback` wrote; the oldest thread, the main one, is last."""
    stacks: list[list[Frame]] = []
    for line in text.splitlines():
        found = _FRAME.match(line)
        if _THREAD.match(line) or line.startswith("Stack (most recent call first)"):
            stacks.append([])
        elif found and stacks:
            number = int(found[2]) if found[2].isdigit() else 0
            stacks[-1].append(Frame(found[1], number, found[3]))
    last = len(stacks) - 1
    return tuple(
        ThreadStack(tuple(frames), is_main=index == last)
        for index, frames in enumerate(stacks)
        if frames
    )


def parse_py_spy(text: str) -> tuple[ThreadStack, ...]:
    """Read `py-spy dump --json`; () when it is not that."""
    try:
        threads = json.loads(text)
        return tuple(_read_py_spy_thread(thread) for thread in threads)
    except (ValueError, KeyError, TypeError):
        return ()


def _read_py_spy_thread(thread: dict[str, Any]) -> ThreadStack:
    frames = tuple(
        # a qualified name (`Trainer.step`, `wrap.<locals>.inner`) is cut to what faulthandler says
        Frame(each["filename"], int(each["line"]), each["name"].rpartition(".")[2])
        for each in thread["frames"]
    )
    return ThreadStack(
        frames, is_main=thread["thread_name"] == _MAIN, owns_gil=bool(thread["owns_gil"])
    )


def find_main(threads: tuple[ThreadStack, ...]) -> ThreadStack | None:
    """Find the main thread's stack."""
    return next((thread for thread in threads if thread.is_main), None)


def add_code(threads: tuple[ThreadStack, ...]) -> tuple[ThreadStack, ...]:
    """Read the source line of each thread's innermost frame from its file."""
    linecache.checkcache()
    return tuple(
        replace(thread, frames=(_with_code(thread.frames[0]), *thread.frames[1:]))
        for thread in threads
        if thread.frames
    )


def _with_code(frame: Frame) -> Frame:
    return replace(frame, code=linecache.getline(frame.path, frame.line).strip())


def read_crash_frames(path: Path) -> tuple[Frame, ...]:
    """Read where a fault in native code ended a rank; outermost frame first, () if unknown."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    last = text.rpartition(_FATAL)[2]
    _, mark, rest = last.partition(_CURRENT)
    # without a current thread a thread of native code crashed: then the main one's place tells more
    crashed = parse_faulthandler((mark + rest).split("\n\n")[0]) or parse_faulthandler(last)
    frames = crashed[-1].frames if crashed else ()
    return tuple(reversed(frames))
