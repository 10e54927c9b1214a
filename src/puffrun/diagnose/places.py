"""Which frame of a stack is the user's, and what lies between it and the innermost one."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from puffrun.outcome import Frame
from puffrun.package import PACKAGE_DIR

_OUR_DIR = str(PACKAGE_DIR) + "/"
_STDLIB = re.compile(r"/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)")
_PUBLIC_CALLS = {  # (file, function) → what people call
    ("agreement/agree.py", "agree"): "agree",
    ("agreement/agree.py", "barrier"): "barrier",
    ("checkpoint.py", "checkpoint"): "checkpoint",
    ("preflight/guard.py", "guard"): "guard",
    ("preflight/guard.py", "check"): "guard",  # the hook of the optimizer
    ("agreement/run_once.py", "main_first"): "main_first",
    ("agreement/run_once.py", "run_once"): "run_once",
    ("preflight/preflight.py", "preflight"): "preflight",
}
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")


def is_library(path: str) -> bool:
    """Whether a frame is not in user code: Python's, a package's, torch's or puffrun's."""
    if path.startswith("<frozen "):
        return True
    if path.startswith(_OUR_DIR):
        return not path.startswith(_OUR_DIR + "demo/")
    return bool(_PACKAGES.search(path) or _STDLIB.search(path))


def name_public_call(frame: Frame) -> str:
    """Name the function of the in-rank library that a frame is, "" for any other frame.

    Only what people call themselves and what waits for other ranks.
    """
    start = _OUR_DIR + "library/"
    if not frame.path.startswith(start):
        return ""
    name = _PUBLIC_CALLS.get((frame.path.removeprefix(start), frame.function))
    return f"puffrun.{name}" if name else ""


def is_raising(frames: Sequence[Frame]) -> bool:
    """Whether a stack is that of a rank which ends with an exception: it is being recorded.

    The frames that raised it are gone by then; they are in the rank's error record.
    """
    recorder = _OUR_DIR + "rank/recorder.py"
    return any(f.path == recorder and f.function == "_try_to_record" for f in frames)


def split_at_user(frames: Sequence[Frame]) -> tuple[tuple[Frame, ...], Frame | None]:
    """Split innermost-first frames: what user code called, and the innermost frame in user code.

    A program that is itself an installed package has no frame in user code; its innermost one
    that is neither torch's nor Python's counts then.
    """
    for is_foreign in (is_library, _is_plumbing):
        for index, frame in enumerate(frames):
            if not is_foreign(frame.path):
                return tuple(frames[:index]), frame
    return tuple(frames), None


def _is_plumbing(path: str) -> bool:
    if "/site-packages/torch/" in path or "/dist-packages/torch/" in path:
        return True
    return is_library(path) and not _PACKAGES.search(path)


def render_place(frame: Frame | None, cwd: Path) -> str:
    """Name a place as people say it: `train.py:88 in step`; "" for none."""
    if frame is None:
        return ""
    packages = _PACKAGES.split(frame.path)
    start = f"{cwd}/"
    if len(packages) > 1:
        path = packages[-1]
    elif frame.path.startswith(start):
        path = frame.path.removeprefix(start)
    else:
        path = os.path.basename(frame.path)  # noqa: PTH119  # a name to show, not a path
    return f"{path}:{frame.line} in {frame.function}"
