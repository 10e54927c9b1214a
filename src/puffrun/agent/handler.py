"""Makes torch's agent start ranks our way, without a change to anything else of it."""

import contextlib
import os
import signal
import threading
from subprocess import Popen
from typing import Any, Protocol

from puffrun.agent.link import AgentRequest, Link
from puffrun.library.agreement.gone_ranks import Announcer


class RankProcess(Protocol):
    """What torch's agent uses of a `Popen`."""

    pid: int

    def poll(self) -> int | None: ...  # noqa: D102  # as Popen has it
    def wait(self, timeout: float | None = None) -> int: ...  # noqa: D102  # as Popen has it


class Spawner(Protocol):
    """Starts one rank and reports its start and its exit to the launcher."""

    def spawn(self, argv: tuple[str, ...], env: dict[str, str], local_rank: int) -> RankProcess:
        """Start a rank in a session of its own; `env` is complete."""


class Executor:
    """Starts each rank as a fresh program."""

    def __init__(self, link: Link, request: AgentRequest) -> None:
        self._link = link
        self._request = request

    def spawn(self, argv: tuple[str, ...], env: dict[str, str], local_rank: int) -> RankProcess:
        """Execute the program, with the recorder first on its PYTHONPATH."""
        path = [self._request.inject_dir, env.get("PYTHONPATH", "")]
        stdin, stdout, stderr = self._request.stdio[local_rank]
        process = Popen(
            argv,
            env={
                **env,
                "PYTHONPATH": os.pathsep.join(entry for entry in path if entry),
                "PUFFRUN_AGENT_PID": str(os.getpid()),
            },
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        for fd in {stdin, stdout, stderr}:
            os.close(fd)
        rank = int(env["RANK"])
        self._link.say_started(rank, local_rank, process.pid)
        threading.Thread(target=watch_exit, args=(self._link, rank, process), daemon=True).start()
        return process


def watch_exit(link: Link, rank: int, process: "Popen[bytes]") -> None:
    """Report a rank's exact status the moment it exits, and leave the reaping to torch."""
    with contextlib.suppress(ChildProcessError):  # torch's poll may have reaped it just before
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    # torch polls this very object, so it knows the status anyway
    link.say_exited(rank, process.pid, process.wait())


def patch_torch(spawner: Spawner, attempt: int, announcer: Announcer) -> None:
    """Make torch's agent start its ranks with `spawner`, and never signal one."""
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    class RankHandler(SubprocessHandler):
        """A rank with its own streams that reports its exit and is never signalled from here."""

        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            env = {**env, "TORCHELASTIC_RESTART_COUNT": str(attempt)}
            announcer.open(env)  # the store is there now
            return spawner.spawn(args, env, self.local_rank_id)

        def close(self, death_sig: signal.Signals | None = None) -> None:
            """Do nothing: the launcher ends the run, after it has taken the evidence."""

    def make_handler(  # noqa: PLR0913, PLR0917  # torch's signature
        entrypoint: str,
        args: tuple[Any, ...],
        env: dict[str, str],
        stdout: str,
        stderr: str,
        local_rank_id: int,
        numa_options: Any = None,
    ) -> RankHandler:
        return RankHandler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)

    # assigned by name: torch does not call these public, so their types are not ours to promise
    vars(api)["get_subprocess_handler"] = make_handler
    vars(api)["_terminate_process_handler"] = ignore_signal  # the agent is ended by SIGKILL only


def ignore_signal(_signum: int, _frame: object) -> None:
    """Stay alive; unlike SIG_IGN, a handler is reset to the default in the ranks."""
