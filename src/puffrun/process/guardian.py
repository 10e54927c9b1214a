"""The guardian: a small process that no descendant of its command can outlive.

Run as `python -I -S guardian.py FD`. It is the child subreaper of everything below it: whatever
a process does to hide (new sessions, double forks, a cleared environment), once orphaned it
becomes a child of the guardian. `waitpid` answering ECHILD is then the kernel's own proof that
nothing is left. The socket FD is its lifeline: JSON lines both ways, and when it closes the
launcher is dead, so the guardian ends the tree by itself. File descriptors in `keep_fds` (an
artifact's lock) stay open until the very end, so a lock is free only when no writer is left.

From the launcher: the request, then `{"leaders", "leaving", "ours"}` (pids), `{"stop": grace_s}`,
`{"kill": true}`. To the launcher: `started` or `failed`, `reaped` (adopted orphans with their
exact status), `exited` (the command), `ended` (nothing is left, or `leftovers` are).
"""

import ctypes
import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

if __name__ == "__main__":  # started by path with -I -S: puffrun is not on sys.path
    _here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path.insert(0, os.path.dirname(os.path.dirname(_here)))  # noqa: PTH120

from puffrun.process.ending import Ending, EndingPlan
from puffrun.process.tree import ProcStat, find_descendants, read_stats

PR_SET_CHILD_SUBREAPER = 36
ORPHAN_GRACE_S = 2.0  # the grace period when the launcher is gone and nobody can wait for it
STEP_S = 0.05  # how often an ending looks for new processes; exits wake it at once
POLITE_SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
)


@dataclass(frozen=True)
class Request:
    """What to run. `stdio` and `child_fds` go to the command, `keep_fds` stay with the guardian.

    With `hold`, what the command leaves behind is the launcher's to judge: the guardian waits
    for its `stop`. Without, it ends the rest as soon as the command has exited.
    """

    argv: list[str]
    cwd: str
    env: dict[str, str]
    stdio: list[int]
    child_fds: list[int]
    keep_fds: list[int]
    grace_s: float
    hold: bool
    spare: list[str]


def become_subreaper() -> None:
    """Make orphaned descendants children of this process (prctl(2)).

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Guardian:
    """Runs one command and outlives everything below it."""

    def __init__(self, lifeline: socket.socket) -> None:
        self._lifeline: socket.socket | None = lifeline
        self._buffer = b""
        self._command_pid: int | None = None
        self._returncode: int | None = None
        self._plan = EndingPlan(grace_s=0.0)
        self._grace_s = 0.0
        self._hold = False
        self._ending: Ending | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(lifeline, selectors.EVENT_READ)
        self._wake_fd, write_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(write_fd, False)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)

    def run(self) -> int:
        """Serve one request until nothing is left below; the exit status is the command's."""
        for message in self._read(first=True):
            if not self._start(Request(**message)):
                return 1
            break
        else:
            return 1  # the launcher died before it said what to run
        while not self._finished():
            timeout = STEP_S if self._ending is not None else None
            for key, _ in self._selector.select(timeout):
                if key.fd == self._wake_fd:
                    os.read(self._wake_fd, 4096)
            for message in self._read(first=False):
                self._obey(message)
        self._report_end()
        return 0

    def _start(self, request: Request) -> bool:
        self._grace_s = request.grace_s
        self._hold = request.hold
        self._plan = replace(self._plan, spare=tuple(request.spare))
        try:
            command = subprocess.Popen(
                request.argv,
                cwd=request.cwd,
                env=request.env,
                stdin=request.stdio[0],
                stdout=request.stdio[1],
                stderr=request.stdio[2],
                pass_fds=request.child_fds,
                start_new_session=True,
            )
        except OSError as error:
            self._say(
                {"failed": [error.errno, os.strerror(error.errno or 0), str(error.filename or "")]}
            )
            return False
        self._command_pid = command.pid
        command.returncode = 0  # we reap it ourselves, with everything else
        for fd in {*request.stdio, *request.child_fds} - {0, 1, 2}:
            os.close(fd)
        self._say({"started": command.pid})
        return True

    def _obey(self, message: dict[str, Any]) -> None:
        now = time.monotonic()
        if "leaders" in message:
            self._plan = replace(
                self._plan,
                leaders=tuple(message["leaders"]),
                leaving=tuple(message["leaving"]),
                ours=tuple(message["ours"]),
            )
        if "stop" in message and self._ending is None:
            self._plan = replace(self._plan, patience_s=float(message.get("patience", 0.0)))
            self._begin_ending(float(message["stop"]))
        if "kill" in message:
            if self._ending is None:
                self._begin_ending(0.0)
            else:
                self._ending.hurry(now)

    def _begin_ending(self, grace_s: float) -> None:
        self._plan = replace(self._plan, grace_s=grace_s)
        self._ending = Ending(self._plan, time.monotonic(), self._find_members)

    def _find_members(self) -> list[ProcStat]:
        return find_descendants([os.getpid()], read_stats())

    def _finished(self) -> bool:
        """Reap, and advance the ending; True when there is nothing below any more."""
        childless = self._reap()
        if childless:
            return True
        if self._returncode is not None and self._ending is None and not self._hold:
            self._begin_ending(self._grace_s)
        now = time.monotonic()
        if self._ending is None or not self._ending.step(now):
            return False
        # nothing is alive; the dead are reaped here too, or they would be the launcher's to bury
        spared = bool(self._plan.spare or self._ending.leftovers)
        return self._reap() or spared or self._ending.is_over(now)

    def _reap(self) -> bool:
        """Reap every dead child; True when there is no child at all (ECHILD)."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            returncode = os.waitstatus_to_exitcode(status)
            if pid == self._command_pid:
                self._returncode = returncode
                self._say({"exited": returncode})
            else:
                self._say({"reaped": [pid, returncode]})

    def _report_end(self) -> None:
        ending = self._ending
        self._say(
            {
                "ended": self._returncode,
                "cleaned": [asdict(s) for s in ending.touched] if ending else [],
                "leftovers": [asdict(s) for s in ending.leftovers] if ending else [],
            }
        )

    def _read(self, *, first: bool) -> list[dict[str, Any]]:
        """Read what the launcher said; a closed lifeline starts the ending."""
        if self._lifeline is None:
            return []
        self._lifeline.setblocking(first)
        try:
            while not first or b"\n" not in self._buffer:
                data = self._lifeline.recv(1 << 16)
                if not data:
                    self._lose_lifeline()
                    return []
                self._buffer += data
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno not in (errno.ECONNRESET, errno.EPIPE):
                raise
            self._lose_lifeline()
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def _lose_lifeline(self) -> None:
        if self._lifeline is not None:
            self._selector.unregister(self._lifeline)
            self._lifeline.close()
            self._lifeline = None
        if self._command_pid is None:
            return
        if self._ending is None:
            self._begin_ending(min(self._grace_s, ORPHAN_GRACE_S))

    def _say(self, message: dict[str, Any]) -> None:
        if self._lifeline is None:
            return
        self._lifeline.setblocking(True)  # noqa: FBT003
        try:
            self._lifeline.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._lose_lifeline()


def _noop(_signum: int, _frame: object) -> None:
    """Stay alive; unlike SIG_IGN, a handler is reset to the default in the command."""


def main() -> int:
    """Run one guardian on the socket that the launcher passed."""
    for signum in POLITE_SIGNALS:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _noop)
    signal.signal(signal.SIGCHLD, _noop)
    become_subreaper()
    return Guardian(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    sys.exit(main())
