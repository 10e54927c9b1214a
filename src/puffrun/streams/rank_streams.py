"""The standard streams of each rank: a file, or a pipe or pseudo-terminal that we copy from.

A rank that is not shown writes straight into its log file: nothing is in between that could lose
or delay a byte. A rank that is shown gets a pipe, or a pseudo-terminal where the launcher's own
stream is a terminal, and the pump copies what it reads to the log first and the console second.
"""

import os
import termios
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

STDIN, STDOUT, STDERR = 0, 1, 2


@dataclass(frozen=True)
class Channel:
    """What the pump reads (`source_fd`), and where it goes. `prefix` is empty for raw copying.

    `console_fd` is the launcher's own stdout or stderr, None when that is closed.
    """

    rank: int
    source_fd: int
    log_path: Path
    console_fd: int | None
    prefix: bytes
    is_tty: bool


@dataclass(frozen=True)
class RankStreams:
    """The launcher's ends (`channels`) and the ranks' ends (`stdio`, by local rank)."""

    channels: tuple[Channel, ...]
    stdio: tuple[tuple[int, int, int], ...]

    def close_rank_ends(self) -> None:
        """Close the ranks' ends here once the agent has them, so that end-of-file can be seen."""
        for fd in {fd for triple in self.stdio for fd in triple}:
            os.close(fd)

    @property
    def keyboard_fd(self) -> int | None:
        """The master that takes what is typed for rank 0; None when nothing is to be typed."""
        first = next((channel for channel in self.channels if channel.rank == 0), None)
        if first is None or not first.is_tty or not _is_tty(STDIN):
            return None
        return first.source_fd

    @property
    def tty_fds(self) -> tuple[int, ...]:
        """The masters of the ranks' pseudo-terminals, whose size follows the real one."""
        return tuple(channel.source_fd for channel in self.channels if channel.is_tty)


def open_streams(
    ranks: Sequence[int],
    shown: tuple[int, ...] | Literal["all"],
    log_paths: Sequence[Path],
) -> RankStreams:
    """Open every rank's streams; the first of `ranks` gets the launcher's stdin if it is rank 0.

    Raises:
        OSError: a log file, pipe or pseudo-terminal could not be made.
    """
    visible = [rank for rank in ranks if shown == "all" or rank in shown]
    channels: list[Channel] = []
    stdio: list[tuple[int, int, int]] = []
    for rank, log_path in zip(ranks, log_paths, strict=True):
        if rank not in visible:
            log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            stdio.append((_open_stdin(rank), log, log))
            continue
        prefix = b"" if len(visible) == 1 else f"rank {rank} | ".encode()
        opened, out, err = _open_shown(rank, log_path, prefix)
        channels += opened
        stdio.append((_open_stdin(rank, terminal=out if opened[0].is_tty else None), out, err))
    return RankStreams(tuple(channels), tuple(stdio))


def _open_stdin(rank: int, terminal: int | None = None) -> int:
    """Give rank 0, and no other, the launcher's stdin.

    A terminal cannot be shared with another session, so there it is the rank's own
    pseudo-terminal, which the `Keyboard` types into.
    """
    if rank == 0 and not _is_tty(STDIN):
        return os.dup(STDIN)
    if rank == 0 and terminal is not None:
        return os.dup(terminal)
    return os.open(os.devnull, os.O_RDONLY)


def _open_shown(rank: int, log_path: Path, prefix: bytes) -> tuple[list[Channel], int, int]:
    """Open one stream for both when stdout and stderr are one thing: that keeps their order."""
    out_source, out = _open_pair(STDOUT, raw=not prefix)
    channels = [_channel(rank, out_source, log_path, STDOUT, prefix)]
    if _same_file(STDOUT, STDERR):
        return channels, out, os.dup(out)
    err_source, err = _open_pair(STDERR, raw=not prefix)
    return [*channels, _channel(rank, err_source, log_path, STDERR, prefix)], out, err


def _channel(rank: int, source: int, log_path: Path, console_fd: int, prefix: bytes) -> Channel:
    return Channel(
        rank=rank,
        source_fd=source,
        log_path=log_path,
        console_fd=console_fd if _is_open(console_fd) else None,
        prefix=prefix,
        is_tty=os.isatty(source),
    )


def _open_pair(console_fd: int, *, raw: bool) -> tuple[int, int]:
    """Open (our end, the rank's end): a pseudo-terminal where the console is one, else a pipe."""
    if not (raw and _is_tty(console_fd)):
        return os.pipe()
    master, slave = os.openpty()
    attributes = termios.tcgetattr(console_fd)
    attributes[1] &= ~termios.OPOST  # the real terminal translates; the log stays byte-exact
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    copy_window_size(console_fd, (master,))
    return master, slave


def copy_window_size(console_fd: int, masters: Iterable[int]) -> None:
    """Give the pseudo-terminals the size of the real one; without a real one do nothing."""
    try:
        size = termios.tcgetwinsize(console_fd)
    except termios.error:
        return
    for master in masters:
        try:
            termios.tcsetwinsize(master, size)
        except termios.error:
            continue  # its rank is gone already


def _is_tty(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _same_file(first: int, second: int) -> bool:
    try:
        one, two = os.fstat(first), os.fstat(second)
    except OSError:
        return False
    return (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino)
