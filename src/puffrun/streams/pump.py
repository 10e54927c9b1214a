"""The pump: copies what shown ranks write to their logs first, and to the console second.

One thread, no waiting on the console: a terminal that is paused or gone slows down the ranks it
shows (as without us) but never the watchdog, and never costs a byte in the log. At the end it
reads until every rank's end is closed, which the death of all of the run's processes guarantees.
"""

import errno
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from puffrun.streams.rank_streams import Channel
from puffrun.streams.terminal_modes import TerminalState

CHUNK = 1 << 16
CONSOLE_CHUNK = 4096  # PIPE_BUF: a pipe that polls writable takes this much without blocking
MAX_BACKLOG = 1 << 18  # more than this unwritten on the console and the ranks have to wait
MAX_LINE = 1 << 20  # a longer line is shown in parts
LAST_WORDS_S = 5.0  # how long the console may take nothing of the rest once the run has ended
LAST_WORDS_LIMIT_S = 30.0  # how long it may take for all of it
SYNC_S = 2.0


class LineSplitter:
    """Turns a byte stream into whole prefixed lines; a redrawn line shows its last state."""

    def __init__(self, prefix: bytes) -> None:
        self._prefix = prefix
        self._partial = b""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are complete now."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        if len(self._partial) > MAX_LINE:
            lines.append(self._partial)
            self._partial = b""
        return b"".join(self._dress(line) for line in lines)

    def flush(self) -> bytes:
        """Return the unfinished last line, if any, finished."""
        rest, self._partial = self._partial, b""
        return self._dress(rest) if rest else b""

    def _dress(self, line: bytes) -> bytes:
        shown = line.rstrip(b"\r").rpartition(b"\r")[2]
        return self._prefix + shown + b"\n"


class Console:
    """One of the launcher's own streams, with what it has not taken yet."""

    def __init__(self, fd: int) -> None:
        self.fd = _reopen(fd)
        self.backlog = bytearray()
        self.gone = False
        self.mid_line = False  # whether the last byte left the cursor within a line
        self._state = TerminalState() if os.isatty(fd) else None

    def add(self, data: bytes) -> None:
        """Queue bytes; a console that is gone takes everything and shows nothing."""
        if not self.gone:
            self.backlog += data
            self.mid_line = not data.endswith(b"\n")
            if self._state is not None:
                self._state.feed(data)

    def restore(self) -> None:
        """Queue what puts a terminal back that a program was killed in."""
        if self._state is not None and not self.gone:
            self.backlog += self._state.undo

    def write_some(self) -> None:
        """Write as much as surely does not block."""
        try:
            written = os.write(self.fd, self.backlog[:CONSOLE_CHUNK])
        except BlockingIOError:
            return
        except OSError:  # the terminal vanished, the reader left: the run goes on without it
            self.gone = True
            self.backlog.clear()
            return
        del self.backlog[:written]

    def close(self) -> None:
        """Close the description that is our own."""
        os.close(self.fd)


def _reopen(fd: int) -> int:
    """Get a description of our own: O_NONBLOCK on the shared one would leak to other processes."""
    mode = os.fstat(fd).st_mode
    if stat.S_ISFIFO(mode) or os.isatty(fd):
        try:
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return os.dup(fd)
    return os.dup(fd)


@dataclass
class _Source:
    channel: Channel
    log: BinaryIO
    console: Console | None
    splitter: LineSplitter | None
    log_failed: bool = False


@dataclass
class Pump:
    """Copies channels in a thread of its own. `on_output` is called before the first byte shows.

    `on_trouble` gets one line when a log cannot be written (a full disk); the run goes on.
    """

    channels: Sequence[Channel]
    on_output: Callable[[], None]
    on_trouble: Callable[[str], None]
    _sources: dict[int, _Source] = field(default_factory=dict)
    _consoles: dict[int, Console] = field(default_factory=dict)
    _logs: dict[Path, BinaryIO] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Open the logs and the consoles."""
        self._wake_read, self._wake_write = os.pipe()
        self._ending = threading.Event()
        self._synced = threading.Condition()
        self._sync_asked = 0
        self._sync_done = 0
        self._done = False
        self._shown_any = False
        for channel in self.channels:
            os.set_blocking(channel.source_fd, False)
            self._sources[channel.source_fd] = _Source(
                channel,
                self._open_log(channel.log_path),
                self._console(channel.console_fd),
                LineSplitter(channel.prefix) if channel.prefix else None,
            )
        self._thread = threading.Thread(target=self._run, name="puffrun-pump", daemon=True)
        self._thread.start()

    def sync(self) -> None:
        """Wait until what the ranks have written by now is in their logs (bounded)."""
        with self._synced:
            if self._done:
                return
            self._sync_asked += 1
            goal = self._sync_asked
            os.write(self._wake_write, b"s")
            self._synced.wait_for(lambda: self._sync_done >= goal or self._done, SYNC_S)

    @property
    def is_full(self) -> bool:
        """Whether a console takes no more, so that the ranks it shows have to wait."""
        return any(len(console.backlog) >= MAX_BACKLOG for console in self._consoles.values())

    @property
    def mid_line(self) -> bool:
        """Whether what was shown last left a console's cursor within a line."""
        return any(console.mid_line for console in self._consoles.values())

    def finish(self) -> None:
        """Read to the end of every stream, then give the console a moment for the rest."""
        self._ending.set()
        with self._synced:
            if not self._done:
                os.write(self._wake_write, b"e")
        self._thread.join(LAST_WORDS_S + LAST_WORDS_LIMIT_S)

    def _open_log(self, path: Path) -> BinaryIO:
        if path not in self._logs:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self._logs[path] = os.fdopen(fd, "wb", buffering=0)
        return self._logs[path]

    def _console(self, fd: int | None) -> Console | None:
        if fd is None:
            return None
        if fd not in self._consoles:
            self._consoles[fd] = Console(fd)
        return self._consoles[fd]

    def _run(self) -> None:
        while self._sources:
            if not self._ending.is_set():
                self._poll_once(None)
            elif not self._poll_once(0):
                break  # nothing more can come: whoever still holds an end is not of this run
        self._flush_lines()
        for console in self._consoles.values():
            console.restore()
        self._say_last_words()
        with self._synced:
            self._done = True
            self._synced.notify_all()
            os.close(self._wake_read)
            os.close(self._wake_write)
        for log in self._logs.values():
            log.close()
        for console in self._consoles.values():
            console.close()

    def _say_last_words(self) -> None:
        """Give the console time for what it has not taken, as long as it takes anything."""
        limit_s = time.monotonic() + LAST_WORDS_LIMIT_S
        patience_s, before = 0.0, -1
        while left := sum(len(console.backlog) for console in self._consoles.values()):
            now = time.monotonic()
            if left != before:
                patience_s, before = now + LAST_WORDS_S, left
            if now >= min(patience_s, limit_s):
                return
            self._poll_once(100)

    def _poll_once(self, timeout_ms: int | None) -> bool:
        """Move what can be moved; True when a source had something."""
        ready = self._wait(timeout_ms)
        moved = False
        for fd in [fd for fd in self._sources if fd in ready]:
            moved |= self._read_source(fd) > 0
        for console in self._consoles.values():
            if console.fd in ready and console.backlog:
                console.write_some()
        self._answer_sync()
        return moved

    def _wait(self, timeout_ms: int | None) -> set[int]:
        """Wait for something to read, or for a console to take what it has not taken yet."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        for fd, source in self._sources.items():
            if self._may_read(source):
                poller.register(fd, select.POLLIN)
        for console in self._consoles.values():
            if console.backlog:
                poller.register(console.fd, select.POLLOUT)
        ready = {fd for fd, _ in poller.poll(timeout_ms)}
        if self._wake_read in ready:
            os.read(self._wake_read, CHUNK)
        return ready

    def _may_read(self, source: _Source) -> bool:
        if self._ending.is_set() or source.console is None:
            return True
        return len(source.console.backlog) < MAX_BACKLOG

    def _read_source(self, fd: int) -> int:
        """Read once; how many bytes there were."""
        source = self._sources[fd]
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:  # how a pseudo-terminal says end-of-file
                raise
            data = b""
        if not data:
            self._close_source(fd)
            return 0
        self._log(source, data)
        self._show(source, data if source.splitter is None else source.splitter.feed(data))
        return len(data)

    def _log(self, source: _Source, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:  # the write that fills a disk takes a part only
                rest = rest[source.log.write(rest) :]
        except OSError as error:
            if not source.log_failed:
                source.log_failed = True
                self.on_trouble(f"cannot write {source.channel.log_path}: {error.strerror}")

    def _show(self, source: _Source, data: bytes) -> None:
        if not data or source.console is None:
            return
        if not self._shown_any:
            self._shown_any = True
            self.on_output()
        source.console.add(data)

    def _close_source(self, fd: int) -> None:
        source = self._sources.pop(fd)
        if source.splitter is not None:
            self._show(source, source.splitter.flush())
        os.close(fd)

    def _flush_lines(self) -> None:
        for fd in list(self._sources):
            self._close_source(fd)

    def _answer_sync(self) -> None:
        with self._synced:
            if self._sync_done == self._sync_asked:
                return
            goal = self._sync_asked
        for fd in list(self._sources):
            rest = CHUNK  # more than a pipe holds; a rank that floods would never let us go
            while rest > 0 and fd in self._sources and (count := self._read_source(fd)):
                rest -= count
        with self._synced:
            self._sync_done = goal
            self._synced.notify_all()
