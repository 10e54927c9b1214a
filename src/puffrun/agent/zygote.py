"""The zygote: a process that has imported torch, and that ranks are forked from.

It is forked from the agent before the agent has any thread, store or rendezvous, stays
single-threaded and never touches a GPU. It knows two things: to fork a rank when the agent asks,
and to report the exact status of one that exited; it is their parent. When the agent is gone it
goes too, and the guardian adopts the ranks, the dead ones with their statuses as well. When it
is killed, the agent says so and ends.

Between the two, JSON lines. To the zygote: `{"rank", "local_rank", "argv", "env"}`. From it:
`{"forked": pid, "rank", "local_rank"}` or `{"failed": [errno, text]}`, and
`{"exited": pid, "returncode"}`.
"""

import contextlib
import json
import os
import queue
import selectors
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NoReturn

from puffrun.agent.link import Link
from puffrun.rank.birth import Birth

FORK_TIMEOUT_S = 60.0  # a fork takes milliseconds; a machine that swaps may need longer


class RefusedError(Exception):
    """This process cannot be forked safely; says why."""


class ForkedRank:
    """As much of a `Popen` as torch's agent uses, for a child of the zygote."""

    def __init__(self, pid: int, rank: int) -> None:
        self.pid = pid
        self.rank = rank
        self.returncode: int | None = None
        self._ended = threading.Event()

    def end(self, returncode: int) -> None:
        """Note how it ended."""
        self.returncode = returncode
        self._ended.set()

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it has not ended by then.
        """
        if not self._ended.wait(timeout) or self.returncode is None:
            raise subprocess.TimeoutExpired(f"rank {self.rank}", timeout or 0.0)
        return self.returncode


class Zygote:
    """The agent's side: asks for ranks, and reports what becomes of them to the launcher."""

    def __init__(
        self, pid: int, channel: socket.socket, link: Link, stdio: list[list[int]]
    ) -> None:
        self.pid = pid
        self._channel = channel
        self._link = link
        self._stdio = stdio
        self._ranks: dict[int, ForkedRank] = {}
        self._answers: queue.SimpleQueue[ForkedRank | OSError] = queue.SimpleQueue()

    def spawn(self, argv: tuple[str, ...], env: dict[str, str], local_rank: int) -> ForkedRank:
        """Have a rank forked.

        Raises:
            OSError: the zygote could not fork.
        """
        if not self._ranks:  # a thread from here on: the zygote exists
            threading.Thread(target=self._listen, daemon=True).start()
        request = {"rank": int(env["RANK"]), "local_rank": local_rank, "argv": argv, "env": env}
        self._channel.sendall(json.dumps(request).encode() + b"\n")
        answer = self._answers.get(timeout=FORK_TIMEOUT_S)
        if isinstance(answer, OSError):
            raise answer
        for fd in set(self._stdio[local_rank]):
            os.close(fd)
        return answer

    def _listen(self) -> None:
        # killed with a request unread, it ends the stream with ECONNRESET
        with self._channel.makefile("rb") as lines, contextlib.suppress(ConnectionError):
            for line in lines:
                self._hear(json.loads(line))
        self._link.say({"crashed": "the process that ranks are forked from was killed"})
        os._exit(1)

    def _hear(self, message: dict[str, Any]) -> None:
        if "forked" in message:
            rank = ForkedRank(message["forked"], message["rank"])
            self._ranks[rank.pid] = rank
            self._link.say_started(rank.rank, message["local_rank"], rank.pid)
            self._answers.put(rank)
        elif "failed" in message:
            self._answers.put(OSError(*message["failed"]))
        else:
            rank = self._ranks[message["exited"]]
            rank.end(message["returncode"])
            self._link.say_exited(rank.rank, rank.pid, message["returncode"])


def fork_zygote(link: Link, stdio: list[list[int]]) -> Zygote | Birth:
    """Fork the zygote; returns a `Zygote` to the agent, and a `Birth` in each rank later.

    Raises:
        RefusedError: a thread of native code was left behind by the fork, so what it held locked
            stays locked in the zygote.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        link.close()
        return _Nursery(theirs, stdio).serve()
    theirs.close()
    # only now: libraries that know about forks (OpenBLAS) end their threads on the way to one
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208  # a count, not paths
        ours.close()
        os.waitpid(pid, 0)
        raise RefusedError("importing torch started a thread")
    return Zygote(pid, ours, link, stdio)


class _Nursery:
    """What runs in the zygote."""

    def __init__(self, channel: socket.socket, stdio: Sequence[Sequence[int]]) -> None:
        self._channel = channel
        self._stdio = dict(enumerate(stdio))  # by local rank, of those that are not born yet
        self._lines = channel.makefile("rb")
        self._pidfds: dict[int, int] = {}  # → pid
        self._selector = selectors.PollSelector()  # an epoll would be shared with the ranks
        self._selector.register(channel, selectors.EVENT_READ)

    def serve(self) -> Birth:
        """Fork and report until the agent is gone; returns in the ranks only."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._pidfds:
                    self._tell_end(key.fd)
                    continue
                birth = self._read()
                if birth is not None:
                    return birth

    def _read(self) -> Birth | None:
        line = self._lines.readline()
        if not line:
            _leave()
        request = json.loads(line)
        # a signal that comes before the rank has its own dispositions waits until it has
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
        except OSError as error:
            pid = -1
            self._say({"failed": [error.errno, os.strerror(error.errno or 0)]})
        if pid == 0:
            return self._leave_home(request, mask)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if pid > 0:
            self._adopt(pid, request)
        return None

    def _leave_home(self, request: dict[str, Any], mask: Iterable[int]) -> Birth:
        """Close what is the zygote's own; the rest is the rank's affair."""
        stdio = self._stdio.pop(request["local_rank"])
        self._lines.close()
        self._channel.close()
        for fd in {*chain(*self._stdio.values()), *self._pidfds}:
            os.close(fd)
        return Birth(
            rank=request["rank"],
            argv=tuple(request["argv"]),
            env=request["env"],
            stdio=(stdio[0], stdio[1], stdio[2]),
            signal_mask=frozenset(mask),
        )

    def _adopt(self, pid: int, request: dict[str, Any]) -> None:
        for fd in set(self._stdio.pop(request["local_rank"])):
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        self._pidfds[pidfd] = pid
        self._selector.register(pidfd, selectors.EVENT_READ)
        self._say({"forked": pid, "rank": request["rank"], "local_rank": request["local_rank"]})

    def _tell_end(self, pidfd: int) -> None:
        """Report an exit, and leave the zombie: should the agent be stopped, it tells the rest."""
        pid = self._pidfds.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if end is None:  # the pidfd says that it has exited
            raise ChildProcessError(f"rank process {pid} is not to be found")
        exited = end.si_code == os.CLD_EXITED
        self._say({"exited": pid, "returncode": end.si_status if exited else -end.si_status})

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            _leave()


def _leave() -> NoReturn:
    """End the zygote: its agent is gone. Nothing of the agent's is run or flushed twice."""
    os._exit(0)
