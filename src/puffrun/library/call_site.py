"""Where a program is, as people say it: `train.py:88 in step`."""

import os
import sys
import sysconfig
import threading
from types import FrameType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120  # compared with co_filename
_OURS = tuple(os.path.join(_PACKAGE, room, "") for room in ("library", "rank"))  # noqa: PTH118
_LIBRARY = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))


def find_caller() -> str:
    """Name the line of the program that called into the library."""
    innermost: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the documented way to look at the stack
    while innermost is not None and innermost.f_code.co_filename.startswith(_OURS):
        innermost = innermost.f_back
    return _name(_find_program(innermost) or innermost)


def find_main_thread_place() -> str:
    """Name the line of the program at which the main thread is now."""
    main = threading.main_thread().ident or 0
    innermost = sys._current_frames().get(main)  # noqa: SLF001  # the documented way to see other threads
    return _name(_find_program(innermost) or innermost)


def _find_program(frame: FrameType | None) -> FrameType | None:
    """Go outwards to the first frame that is neither ours, Python's nor a package's."""
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def find_raising_line(error: BaseException) -> str:
    """Name the innermost line of the program that the error passed through."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not _is_library(code.co_filename):
            places.append(f"{_shorten(code.co_filename)}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    return places[-1] if places else ""


def _is_library(path: str) -> bool:
    return path.startswith((*_OURS, "<frozen", *_LIBRARY))


def _name(frame: FrameType | None) -> str:
    if frame is None:
        return ""
    return f"{_shorten(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def _shorten(path: str) -> str:
    here = os.getcwd() + os.sep  # noqa: PTH109  # compared with co_filename
    return path.removeprefix(here) if path.startswith(here) else os.path.basename(path)  # noqa: PTH119
