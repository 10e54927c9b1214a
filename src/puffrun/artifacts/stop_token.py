"""A request to stop that a signal handler may make and that any number of threads can wait for."""

import os
import select


class StopToken:
    """Told once to stop, twice to hurry.

    Safe to `set` in a signal handler, unlike `threading.Event`, whose lock the interrupted code
    may hold: this is a number and two event descriptors that stay readable.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._stop_fd = os.eventfd(0)
        self._hurry_fd = os.eventfd(0)

    def set(self, signum: int) -> None:
        """Ask everybody to stop because of this signal; the second time, to stop at once."""
        os.eventfd_write(self._stop_fd if self.signum is None else self._hurry_fd, 1)
        self.signum = self.signum or signum

    def is_set(self) -> bool:
        """Whether somebody asked."""
        return self.signum is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the request, at most `timeout_s`; whether it came."""
        if self.signum is None:
            select.select([self._stop_fd], [], [], timeout_s)
        return self.signum is not None

    def fileno(self) -> int:
        """A descriptor that stays readable once `set` was called."""
        return self._stop_fd

    def hurry_fileno(self) -> int:
        """A descriptor that stays readable once `set` was called twice."""
        return self._hurry_fd

    def __del__(self) -> None:
        os.close(self._stop_fd)
        os.close(self._hurry_fd)
