"""Which frames of a traceback are the user's, and how they look."""

import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from puffrun.console.card.plan_facts import relative_path
from puffrun.console.text import clean_line, count_cells, shorten
from puffrun.outcome import Cause, Frame
from puffrun.package import PACKAGE_DIR

MAX_FRAMES = 5
_MIN_CODE = 20  # columns below which a part of a line of code says nothing
_OUR_DIR = str(PACKAGE_DIR)
_STDLIB_DIR = sysconfig.get_path("stdlib")
_STDLIB_PATTERN = re.compile(r"/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)")
_STDLIB_START = re.compile(".*" + _STDLIB_PATTERN.pattern)
_PACKAGES_PATTERN = re.compile(r".*/(?:site|dist)-packages/")
_FRAME_PATTERN = re.compile(
    r'^  File "(.+)", line (\d+), in (.+)\n(?:    (\S.*)\n?)?', re.MULTILINE
)
_LAST_TRACEBACK = "Traceback (most recent call last):"


def find_frames(cause: Cause) -> tuple[Frame, ...]:
    """Return the frames that the rank recorded, else those that its traceback's text shows."""
    if cause.frames or not cause.traceback:
        return cause.frames
    text = cause.traceback.rsplit(_LAST_TRACEBACK, 1)[-1]
    return tuple(
        Frame(path, int(line), function, code or "")
        for path, line, function, code in _FRAME_PATTERN.findall(text)
    )


def pick_user_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Keep the last frames in user code: not torch's, the standard library's or puffrun's.

    A program that is itself an installed package has only frames in site-packages; those do then.
    """
    own = [frame for frame in frames if not _is_plumbing(frame.path)]
    users = [frame for frame in own if not _PACKAGES_PATTERN.match(frame.path)]
    return tuple((users or own or list(frames))[-MAX_FRAMES:])


def _is_plumbing(path: str) -> bool:
    """Say whether a frame tells the user nothing about the user's program."""
    if path.startswith("<frozen ") or "/site-packages/torch/" in path:
        return True
    if path.startswith(_OUR_DIR + "/"):
        return not path.startswith(_OUR_DIR + "/demo/")
    if _PACKAGES_PATTERN.match(path):
        return False
    return path.startswith(_STDLIB_DIR + "/") or bool(_STDLIB_PATTERN.search(path))


def render_frames(frames: Sequence[Frame], cwd: Path, width: int) -> list[str]:
    """Draw frames as two columns: where, and the line of code."""
    places = [shorten(_render_place(frame, cwd), width) for frame in frames]
    column = max(map(count_cells, places), default=0)
    if column + _MIN_CODE > width:
        return places
    return [
        shorten(_pad(place, column) + "   " + clean_line(frame.code).strip(), width).rstrip()
        for place, frame in zip(places, frames, strict=True)
    ]


def _pad(text: str, column: int) -> str:
    return text + " " * (column - count_cells(text))


def _render_place(frame: Frame, cwd: Path) -> str:
    return clean_line(f"{shorten_path(frame.path, cwd)}:{frame.line} in {frame.function}")


def shorten_path(path: str, cwd: Path) -> str:
    """Show a path from the working directory, the packages or the standard library on."""
    return _STDLIB_START.sub("", _PACKAGES_PATTERN.sub("", relative_path(path, cwd)))
