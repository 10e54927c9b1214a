"""The screen: whole lines, one live line on a TTY, and never a word on stdout.

Writing never raises and never waits for long: a terminal that is gone ends no run.
"""

import os
import select
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TextIO

from puffrun.console.paint import Paint
from puffrun.console.text import clean_line, shorten

PREFIX = "puffrun  "
_CLEAR_LINE = "\r\x1b[2K"
_DEFAULT_WIDTH = 100  # a file or a CI log
_MIN_WIDTH = 40
_FULL_STREAM_S = 2.0  # how long a stream that is full may keep us
_CHUNK_BYTES = 4096  # PIPE_BUF: a writable pipe has room for it


def make_screen(stream: TextIO | None, environ: Mapping[str, str]) -> "Screen":
    """Make the screen that fits a stream: TTY or not, colour or not, how wide."""
    tty = _is_tty(stream)
    is_dumb = environ.get("TERM", "") in ("", "dumb")
    return Screen(
        stream,
        tty=tty and not is_dumb,
        color=tty and not is_dumb and not environ.get("NO_COLOR"),
        width=_detect_width(stream, environ),
    )


def _is_tty(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def _detect_width(stream: TextIO | None, environ: Mapping[str, str]) -> int:
    asked = environ.get("COLUMNS", "")
    width = int(asked) if asked.isdecimal() else 0
    if width == 0 and stream is not None:
        try:
            width = os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError):
            width = 0
    return max(width or _DEFAULT_WIDTH, _MIN_WIDTH)


class Screen:
    """Where puffrun speaks. Safe to use from several threads."""

    def __init__(
        self, stream: TextIO | None = None, *, tty: bool, color: bool = False, width: int = 80
    ) -> None:
        self.tty = tty
        self.width = width
        self.paint = Paint(color=color)
        self._stream = sys.stderr if stream is None else stream
        self._lock = threading.RLock()
        self._live = ""
        self._is_mid_line = False
        self._is_gone = False
        self._is_stuck = False

    def say(self, text: str) -> None:
        """Write whole lines, each after `puffrun`."""
        start = self.paint.dim(PREFIX.rstrip()) + "  "
        self.say_lines(start + clean_line(line) for line in text.split("\n"))

    def say_raw(self, text: str) -> None:
        """Write whole lines as they are; the caller vouches for them."""
        self.say_lines(text.split("\n"))

    def say_lines(self, lines: Iterable[str]) -> None:
        """Write lines in one piece, so that nothing else comes between them."""
        text = "".join(line + "\n" for line in lines)
        with self._lock:
            start = "\n" if self._is_mid_line else self._clearing()
            self._is_mid_line = False
            self._live = ""
            self._write(start + text)

    def live(self, text: str) -> None:
        """Show a line that the next write replaces; off a TTY nothing."""
        if not self.tty:
            return
        line = shorten(PREFIX + clean_line(text), self.width - 1)
        with self._lock:
            if line == self._live or self._is_mid_line:
                return
            self._live = line
            self._write(_CLEAR_LINE + self.paint.dim(line))

    def clear_live(self) -> None:
        """Take the live line away; called before the program's own output is written."""
        with self._lock:
            start, self._live = self._clearing(), ""
            if start:
                self._write(start)

    def note_cursor(self, *, mid_line: bool) -> None:
        """Say where the program's own output left the cursor, so that our lines start a new one."""
        with self._lock:
            self._is_mid_line = mid_line and self.tty

    def error(self, message: str, hint: str | None = None) -> None:
        """Write `error: …` and `hint: …`, as every failure of puffrun itself ends."""
        lines = [clean_line(line) for line in message.split("\n")]
        lines[0] = f"{self.paint.red('error:')} {lines[0]}"
        if hint:
            lines.append(f"{self.paint.cyan('hint:')} {clean_line(hint)}")
        self.say_lines(lines)

    def _clearing(self) -> str:
        return _CLEAR_LINE if self._live else ""

    def _write(self, text: str) -> None:
        """Write and forget about it: a stream that fails is left alone for good.

        One that is only full, such as a terminal paused by Ctrl-S, loses what does not fit in time.
        """
        if self._is_gone:
            return
        patience_s = 0.0 if self._is_stuck else _FULL_STREAM_S
        try:
            self._is_stuck = not _write_text(self._stream, text, patience_s)
        except (OSError, ValueError):
            self._is_gone = True


def _write_text(stream: TextIO | None, text: str, patience_s: float) -> bool:
    """Write to the file descriptor where there is one; False when it took not all of it in time."""
    if stream is None:
        return True
    try:
        fd = stream.fileno()
    except OSError:  # a stream in memory
        stream.write(text)
        stream.flush()
        return True
    data = memoryview(text.encode(stream.encoding or "utf-8", "replace"))
    deadline = time.monotonic() + patience_s
    while data and _wait_writable(fd, deadline):
        data = data[_write_some(fd, data[:_CHUNK_BYTES]) :]
    return not data


def _wait_writable(fd: int, deadline: float) -> bool:
    """Wait for room, so that the write after it does not block, until the deadline."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))


def _write_some(fd: int, data: memoryview) -> int:
    """Write what fits now."""
    try:
        return os.write(fd, data)
    except BlockingIOError:
        return 0
