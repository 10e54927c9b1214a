"""The launcher's side of a guardian: start one, talk to it, and take over should it be killed."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from puffrun.process import guardian
from puffrun.process.ending import Ending, EndingPlan
from puffrun.process.tree import (
    ProcStat,
    find_descendants,
    find_moving,
    read_stats,
    send_signal,
)

START_TIMEOUT_S = 60.0  # a guardian needs 50 ms; a machine that swaps may need longer
BURY_TIMEOUT_S = 5.0  # from a guardian's last word to its exit
PAUSE_TIMEOUT_S = 5.0  # for what sits in the kernel; all else stops within milliseconds
PAUSE_STEP_S = 0.001
QUIET_LOOKS = 2
TAKEOVER_STEP_S = 0.02

_our_children: set[int] = set()
_our_children_lock = threading.Lock()


@dataclass(frozen=True)
class GuardedExit:
    """How a guarded command ended.

    `returncode` is the command's, as subprocess has it (-N for signal N); None when it is not
    known because the guardian itself was killed. `cleaned` were alive after it, `leftovers` did
    not even die of SIGKILL.
    """

    returncode: int | None
    cleaned: tuple[ProcStat, ...] = ()
    leftovers: tuple[ProcStat, ...] = ()


@dataclass
class _State:
    """What has been heard from the guardian so far."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    end: GuardedExit | None = None
    lost: bool = False


class Guarded:
    """A command below a guardian. Not thread-safe: one thread talks to it."""

    def __init__(self, popen: subprocess.Popen[bytes], link: socket.socket, grace_s: float) -> None:
        self._popen = popen
        self._link = link
        self._grace_s = grace_s
        self._buffer = b""
        self._state = _State()
        self._leaders: tuple[int, ...] = ()
        self.command_pid: int | None = None

    @property
    def pid(self) -> int:
        """The guardian's pid."""
        return self._popen.pid

    @property
    def lost(self) -> bool:
        """Whether the guardian was killed before the tree had ended."""
        return self._state.lost

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to `receive`."""
        return self._link.fileno()

    def set_leaders(
        self, leaders: Iterable[int], leaving: Iterable[int] = (), ours: Iterable[int] = ()
    ) -> None:
        """Say which pids get the first SIGTERM, which leave already, and which are our own."""
        self._leaders = tuple(leaders)
        self._say({"leaders": list(self._leaders), "leaving": list(leaving), "ours": list(ours)})

    def stop(self, grace_s: float | None = None, patience_s: float = 0.0) -> None:
        """Ask for the end of the whole tree: patience, SIGTERM, the grace period, SIGKILL."""
        grace_s = self._grace_s if grace_s is None else grace_s
        self._say({"stop": grace_s, "patience": patience_s})

    def pause(self) -> list[ProcStat]:
        """SIGSTOP everything below the guardian, until all of it stands still; for `resume`.

        A signal is acted on when its process next runs, which on a busy machine takes a while,
        and a fork that was under way goes through before that. So it is over when two looks in a
        row have found nothing that moves, and nothing new. What sits in the kernel for longer
        (state D) stops when it comes out.
        """
        stopped: dict[tuple[int, int], ProcStat] = {}
        quiet, deadline = 0, time.monotonic() + PAUSE_TIMEOUT_S
        while quiet < QUIET_LOOKS and time.monotonic() < deadline:
            members = [s for s in find_descendants([self.pid], read_stats()) if s.alive]
            new = [s for s in members if (s.pid, s.started) not in stopped]
            for stat in new:
                stopped[stat.pid, stat.started] = stat
                send_signal(stat, signal.SIGSTOP)
            quiet = 0 if new or find_moving(members) else quiet + 1
            time.sleep(PAUSE_STEP_S)
        return list(stopped.values())

    def resume(self, stopped: Iterable[ProcStat]) -> None:
        """SIGCONT what `pause` has stopped."""
        for stat in stopped:
            send_signal(stat, signal.SIGCONT)

    def look(self) -> None:
        """Say that something below has ended, so that an ending need not wait for its next step."""
        self._say({"look": True})

    def kill(self) -> None:
        """Ask for the end of the whole tree now."""
        self._say({"kill": True})

    def replace(self) -> None:
        """Kill a guardian that does not answer; `wait` then ends what was below it from here."""
        self._popen.kill()

    def receive(self, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """Take the messages that have come (`started`, `reaped`, `exited`, `ended`)."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._link, selectors.EVENT_READ)
            while not self._state.messages and self._state.end is None and not self._state.lost:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    break
                self._read()
        messages, self._state.messages = self._state.messages, []
        return messages

    def wait(self, timeout_s: float) -> GuardedExit | None:
        """Wait until the tree has ended; None when it has not by then.

        Takes over when the guardian was killed: whatever it left is ended from here.
        """
        deadline = time.monotonic() + timeout_s
        while self._state.end is None and not self._state.lost:
            if not self.receive(deadline - time.monotonic()) and time.monotonic() >= deadline:
                return None
        self._bury()  # a killed guardian's children are ours only once it has been reaped
        if self._state.end is None:
            grace_s = min(self._grace_s, guardian.ORPHAN_GRACE_S)
            self._state.end = end_orphans(grace_s, self._leaders)
        return self._state.end

    def _bury(self) -> None:
        """Reap the guardian itself; it has nothing left to do, or is dead already."""
        self._link.close()
        try:
            self._popen.wait(BURY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        with _our_children_lock:
            _our_children.discard(self._popen.pid)

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._read()  # the guardian is gone: what it said last, or that it was lost

    def _read(self) -> None:
        try:
            data = self._link.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._state.lost = self._state.end is None
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            self._state.messages.append(message)
            if "ended" in message:
                self._state.end = GuardedExit(
                    message["ended"],
                    tuple(ProcStat(**stat) for stat in message["cleaned"]),
                    tuple(ProcStat(**stat) for stat in message["leftovers"]),
                )


def start_guarded(  # noqa: PLR0913  # each is one property of a process
    argv: list[str] | tuple[str, ...],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    child_fds: Iterable[int] = (),
    keep_fds: Iterable[int] = (),
    grace_s: float = 5.0,
    hold: bool = False,
    spare: Iterable[str] = (),
) -> Guarded:
    """Start a command in a new session below a guardian; stdio defaults to /dev/null.

    `child_fds` are inherited by the command under the same numbers, `keep_fds` are held open by
    the guardian until everything below it is dead.

    Raises:
        OSError: the command could not be started (FileNotFoundError, PermissionError, ...).
    """
    guardian.become_subreaper()
    ours, theirs = socket.socketpair()
    devnull = os.open(os.devnull, os.O_RDWR)
    stdio = [devnull if fd is None else fd for fd in (stdin, stdout, stderr)]
    request = guardian.Request(
        argv=[str(part) for part in argv],
        cwd=str(cwd),
        env=dict(env),
        stdio=stdio,
        child_fds=list(child_fds),
        keep_fds=list(keep_fds),
        grace_s=grace_s,
        hold=hold,
        spare=list(spare),
    )
    try:
        with _our_children_lock:  # so that nobody takes it for an orphan before it is known
            popen = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, str(theirs.fileno())],
                stdin=devnull,
                stdout=devnull,
                stderr=stdio[2],
                cwd="/",
                env={"PUFFRUN_RUN_ID": env["PUFFRUN_RUN_ID"]} if "PUFFRUN_RUN_ID" in env else {},
                pass_fds={*stdio, *request.child_fds, *request.keep_fds, theirs.fileno()},
                start_new_session=True,
            )
            _our_children.add(popen.pid)
    finally:
        theirs.close()
        os.close(devnull)
    guarded = Guarded(popen, ours, grace_s)
    guarded._say(asdict(request))  # noqa: SLF001  # the first message of the protocol
    _await_start(guarded, argv[0])
    return guarded


def _await_start(guarded: Guarded, program: str) -> None:
    messages = guarded.receive(START_TIMEOUT_S)
    for message in messages:
        if "started" in message:
            guarded.command_pid = message["started"]
            guarded._state.messages = [m for m in messages if m is not message]  # noqa: SLF001  # same module
            return
        if "failed" in message:
            guarded._bury()  # noqa: SLF001  # same module
            number, text, filename = message["failed"]
            raise OSError(number, text, filename or program)
    guarded.kill()
    guarded.wait(START_TIMEOUT_S)
    raise OSError(f"the guardian of `{program}` ended before it could start it")


@contextmanager
def known_child(argv: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a plain child in its own session that nobody will take for an orphan."""
    with _our_children_lock:
        popen = subprocess.Popen(list(argv), start_new_session=True, **options)
        _our_children.add(popen.pid)
    try:
        yield popen
    finally:
        with _our_children_lock:
            _our_children.discard(popen.pid)


def end_orphans(grace_s: float, leaders: Iterable[int] = ()) -> GuardedExit:
    """End what a killed guardian left; as the next subreaper, this process has adopted it.

    Children that this process knows (other guardians, captured commands) are left alone.
    """
    me = os.getpid()

    def find_members() -> list[ProcStat]:
        stats = read_stats()
        with _our_children_lock:
            known = set(_our_children)
        adopted = [s for s in stats.values() if s.ppid == me and s.pid not in known]
        for stat in adopted:
            if not stat.alive:
                _reap(stat.pid)
        return adopted + find_descendants([s.pid for s in adopted], stats)

    ending = Ending(EndingPlan(grace_s, tuple(leaders)), time.monotonic(), find_members)
    pause = threading.Event()
    while not ending.step(time.monotonic()):
        pause.wait(TAKEOVER_STEP_S)
    find_members()  # reap what died last
    return GuardedExit(None, ending.touched, ending.leftovers)


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
