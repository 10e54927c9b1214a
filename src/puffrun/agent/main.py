"""What runs inside the torchrun agent process: torch's own agent, with three things changed.

1. Each rank gets the standard streams that the launcher made for it, not files that are re-read.
2. A rank's start and its exact exit status are reported to the launcher at once, as events.
3. The agent never signals a rank: evidence is taken first, and ending the run is the launcher's.

Everything else (rendezvous, the store, RANK and its kin) is `torch.distributed.run` itself. The
agent is started early, so that its import of torch overlaps with the artifact phase, and waits
for `go` before any rank exists.

The link is a socket, inherited by number. From the launcher: one `AgentRequest`, then
`{"go": {"env": {...}}}`. To the launcher: `ready`, `started`, `exited`, `crashed`; all JSON lines.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from subprocess import Popen
from typing import Any

PORT_ATTEMPTS = 5


@dataclass(frozen=True)
class AgentRequest:
    """What to launch. `stdio`: (stdin, stdout, stderr) descriptors, one triple a local rank."""

    run_id: str
    argv: list[str]
    ranks_per_node: int
    nodes: int
    node_rank: int
    master_addr: str
    master_port: int | None  # None: any free port (one node)
    log_dir: str
    attempt: int  # the ranks' TORCHELASTIC_RESTART_COUNT: each attempt has a fresh agent
    inject_dir: str  # first on the ranks' PYTHONPATH: rank/inject/sitecustomize.py
    stdio: list[list[int]]


class Link:
    """The agent's end of the socket to the launcher; may be used from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()

    def receive(self) -> dict[str, Any]:
        """Wait for the next message.

        Raises:
            EOFError: the launcher is gone; the guardian is about to end this process.
        """
        line = self._file.readline()
        if not line:
            raise EOFError("the launcher is gone")
        message: dict[str, Any] = json.loads(line)
        return message

    def say(self, message: dict[str, Any]) -> None:
        """Send one message; a launcher that is gone needs none."""
        with self._lock:
            try:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                return


def watch_exit(link: Link, rank: int, process: "Popen[bytes]") -> None:
    """Report a rank's exact status the moment it exits, and leave the reaping to torch."""
    with contextlib.suppress(ChildProcessError):  # torch's poll may have reaped it just before
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    returncode = process.wait()  # torch polls this very object, so it knows the status anyway
    link.say({"exited": rank, "pid": process.pid, "returncode": returncode, "at": time.time_ns()})


def rank_env(env: dict[str, str], request: AgentRequest) -> dict[str, str]:
    """Put the recorder first on a rank's PYTHONPATH, and say who its parent is."""
    path = [request.inject_dir, env.get("PYTHONPATH", "")]
    return {
        **env,
        "PYTHONPATH": os.pathsep.join(entry for entry in path if entry),
        "PUFFRUN_AGENT_PID": str(os.getpid()),
        "TORCHELASTIC_RESTART_COUNT": str(request.attempt),
    }


def patch_torch(link: Link, request: AgentRequest) -> None:
    """Make torch's agent start ranks our way; see the module's docstring."""
    from torch.distributed.elastic.multiprocessing import api
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    class RankHandler(SubprocessHandler):
        """A rank with its own streams that reports its exit and is never signalled from here."""

        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> "Popen[bytes]":
            stdin, stdout, stderr = request.stdio[self.local_rank_id]
            process = Popen(
                args,
                env=rank_env(env, request),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            for fd in {stdin, stdout, stderr}:
                os.close(fd)
            rank = int(env["RANK"])
            link.say(
                {
                    "started": rank,
                    "local_rank": self.local_rank_id,
                    "pid": process.pid,
                    "at": time.time_ns(),
                }
            )
            threading.Thread(target=watch_exit, args=(link, rank, process), daemon=True).start()
            return process

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


def torchrun_options(request: AgentRequest, port: int) -> list[str]:
    """Spell the options for torch.distributed.run; nothing is left to PET_* or to a default."""
    return [
        f"--nnodes={request.nodes}",
        f"--nproc-per-node={request.ranks_per_node}",
        f"--node-rank={request.node_rank}",
        f"--rdzv-id={request.run_id}",
        "--rdzv-backend=static",
        f"--master-addr={request.master_addr}",
        f"--master-port={port}",
        f"--local-addr={request.master_addr}",
        "--max-restarts=0",
        "--monitor-interval=1",
        f"--log-dir={request.log_dir}",
        "--no-python",
    ]


def find_free_port(address: str) -> int:
    """Ask the kernel for a port that is free now."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


def run_agent(request: AgentRequest) -> None:
    """Run torch's agent until every rank has exited or one has failed."""
    from torch.distributed import DistNetworkError
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    for attempt in range(1, PORT_ATTEMPTS + 1):
        port = request.master_port or find_free_port(request.master_addr)
        options = torchrun_options(request, port)
        config, _, _ = config_from_args(
            parse_args([*options, "program"])  # type: ignore[no-untyped-call]
        )
        try:
            elastic_launch(config, request.argv[0])(*request.argv[1:])
        except ChildFailedError:
            return  # the launcher knows each rank's status already, and better
        except DistNetworkError as error:  # somebody took the port since: only before any rank
            if "EADDRINUSE" not in str(error) or attempt == PORT_ATTEMPTS:
                raise
        else:
            return


def main() -> int:
    """Serve one launch on the link that was inherited as descriptor argv[1]."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, ignore_signal)
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    try:
        request = AgentRequest(**link.receive())
        import torch.distributed.run  # noqa: F401  # the expensive part, before `go`

        patch_torch(link, request)
        link.say({"ready": os.getpid()})
        os.environ.update(link.receive()["go"]["env"])
        run_agent(request)
    except EOFError:
        return 1
    except Exception as error:  # noqa: BLE001  # this is the agent's main: the launcher gets it all
        traceback.print_exc()
        link.say({"crashed": f"{type(error).__name__}: {error}"})
        return 1
    return 0
