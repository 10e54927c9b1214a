"""The keyboard: types what the user types into rank 0's pseudo-terminal, for `breakpoint()`.

The real terminal stays in its usual mode: it echoes, edits the line, and turns Ctrl-C and Ctrl-Z
into signals for the launcher.
"""

import os
import select
import threading

CHUNK = 4096
END_OF_FILE = b"\x04"  # Ctrl-D, as the pseudo-terminal wants it
BACKGROUND_PAUSE_MS = 500
STOP_S = 1.0


class Keyboard:
    """Copies in a thread of its own until `stop`; reads only while in the foreground.

    A background process that reads its terminal is stopped by SIGTTIN, which would stop the
    watchdog.
    """

    def __init__(self, terminal_fd: int, rank_fd: int) -> None:
        self._terminal_fd = terminal_fd
        self._rank_fd = os.dup(rank_fd)
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="puffrun-keyboard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Read no more; what is typed from now on is the shell's."""
        os.close(self._stop_write)
        self._thread.join(STOP_S)
        if not self._thread.is_alive():  # else it reads what another reader took from it
            os.close(self._stop_read)
            os.close(self._rank_fd)

    def _run(self) -> None:
        while True:
            wanted = [self._stop_read]
            foreground = self._is_foreground()
            if foreground:
                wanted.append(self._terminal_fd)
            timeout_s = None if foreground else BACKGROUND_PAUSE_MS / 1000
            ready, _, _ = select.select(wanted, [], [], timeout_s)
            if self._stop_read in ready:
                return
            if self._terminal_fd in ready and self._is_foreground() and not self._copy():
                return

    def _is_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._terminal_fd) == os.getpgrp()
        except OSError:  # not our controlling terminal: nobody will stop us for reading it
            return True

    def _copy(self) -> bool:
        """Copy what was typed; False when the terminal or the rank is gone."""
        try:
            typed = os.read(self._terminal_fd, CHUNK)
            os.write(self._rank_fd, typed or END_OF_FILE)
        except BlockingIOError:  # the rank does not read: what it has not room for is lost
            return True
        except OSError:
            return False
        return True


class NoKeyboard:
    """Nothing is typed."""

    def stop(self) -> None:
        """Do nothing."""


def start_keyboard(terminal_fd: int, rank_fd: int | None) -> Keyboard | NoKeyboard:
    """Start typing into `rank_fd`, or do nothing when there is none."""
    return NoKeyboard() if rank_fd is None else Keyboard(terminal_fd, rank_fd)
