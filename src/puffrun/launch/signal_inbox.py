"""The signals that reach the launcher: an inbox with a descriptor, and a stop token for builds."""

import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from puffrun.artifacts import StopToken
from puffrun.watch import FORWARDED

ENDING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,  # Ctrl-\
    signal.SIGALRM,
    signal.SIGXCPU,
)
PAUSING = (signal.SIGTSTP, signal.SIGCONT)


class SignalInbox:
    """Collects signals for the main loop. `stop` is set by the first one that ends the run."""

    def __init__(self) -> None:
        self.stop = StopToken()
        self._signals: deque[int] = deque()
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        os.set_blocking(self._write_fd, False)

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to `take`."""
        return self._read_fd

    def put(self, signum: int) -> None:
        """Deliver a signal; safe in a signal handler."""
        self._signals.append(signum)
        if signum in ENDING:
            self.stop.set(signum)
        try:
            os.write(self._write_fd, b"!")
        except BlockingIOError:
            return  # it is full, so it is readable

    def take(self) -> list[int]:
        """Take what has come since the last time."""
        with suppress(BlockingIOError):
            os.read(self._read_fd, 4096)
        taken = []
        while self._signals:
            taken.append(self._signals.popleft())
        return taken

    def has(self, signum: int) -> bool:
        """Whether a signal has come that has not been taken yet."""
        return signum in self._signals

    def drop_forwarded(self) -> None:
        """Forget signals for the ranks that came before there was any rank."""
        for signum in self.take():
            if signum in ENDING:
                self._signals.append(signum)
                os.write(self._write_fd, b"!")

    @contextmanager
    def catching(self, signums: Iterable[int]) -> Iterator[None]:
        """Deliver these signals here for a while; an inherited ignore (nohup) stays ignored."""

        def handler(signum: int, _frame: FrameType | None) -> None:
            self.put(signum)

        previous = {}
        for signum in signums:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                previous[signum] = signal.signal(signum, handler)
        try:
            yield
        finally:
            for signum, old in previous.items():
                if signal.getsignal(signum) is handler:
                    signal.signal(signum, old)

    def close(self) -> None:
        """Give the descriptors back."""
        os.close(self._read_fd)
        os.close(self._write_fd)


@contextmanager
def catch_signals() -> Iterator[SignalInbox]:
    """Deliver the signals that end a run, and those meant for the ranks, to an inbox.

    Afterwards they are ignored: the run is over and its exit code is decided, so that one more
    Ctrl-C while the launcher leaves must not turn it into another.
    """
    inbox = SignalInbox()
    try:
        with inbox.catching((*ENDING, *FORWARDED)):
            yield inbox
            for signum in (*ENDING, *FORWARDED):
                signal.signal(signum, signal.SIG_IGN)
    finally:
        inbox.close()
