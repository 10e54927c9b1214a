"""One attempt to run the ranks: guardian → torchrun agent → ranks, and the links to both.

The agent is started before the artifacts are ready, because it takes seconds to import torch;
no rank exists before `go`.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from puffrun.errors import LaunchError
from puffrun.package import PACKAGE_DIR
from puffrun.plan import LaunchPlan
from puffrun.process import Guarded, start_guarded
from puffrun.rundir import ENV_RUN_DIR, ENV_RUN_ID, RunDir
from puffrun.streams.rank_streams import RankStreams, open_streams

LOOPBACK = "127.0.0.1"
INJECT_DIR = PACKAGE_DIR / "rank" / "inject"
AGENT_START = PACKAGE_DIR / "agent" / "start.py"


@dataclass
class Session:
    """The live ends of one attempt."""

    guarded: Guarded
    link: socket.socket
    streams: RankStreams
    attempt: int
    _buffer: bytes = b""
    zygote_pid: int | None = None  # known once the agent is ready
    agent_gone: bool = False

    @property
    def agent_pid(self) -> int:
        """The torchrun agent's pid."""
        return self.guarded.command_pid or 0

    @property
    def own_pids(self) -> list[int]:
        """Puffrun's own processes below the guardian."""
        return [pid for pid in (self.agent_pid, self.zygote_pid) if pid is not None]

    def go(self, env: Mapping[str, str]) -> None:
        """Let the agent start the ranks, with these variables added to their environment."""
        self._say({"go": {"env": dict(env)}})

    def receive(self) -> list[dict[str, Any]]:
        """Take the agent's messages that have come; sets `agent_gone` at the end of the link."""
        try:
            data = self.link.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.agent_gone = True
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self.link.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.agent_gone = True


def start_session(plan: LaunchPlan, run_dir: RunDir, attempt: int) -> Session:
    """Start the guardian and the agent; the ranks wait for `Session.go`.

    Raises:
        LaunchError: the streams, the guardian or the agent could not be made.
    """
    log_paths = [run_dir.log_path(rank) for rank in plan.node_ranks]
    try:
        streams = open_streams(plan.node_ranks, plan.show_ranks, log_paths)
        ours, theirs = socket.socketpair()
        log = os.open(run_dir.agent_log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise LaunchError(f"cannot open the ranks' streams: {error}") from error
    try:
        guarded = start_guarded(
            (sys.executable, "-u", str(AGENT_START), str(theirs.fileno())),
            cwd=plan.cwd,
            env=_agent_env(plan),
            stdout=log,
            stderr=log,
            child_fds=[theirs.fileno(), *{fd for triple in streams.stdio for fd in triple}],
            grace_s=plan.grace_s,
            hold=True,
        )
    except OSError as error:
        raise LaunchError(f"cannot start the torchrun agent: {error}") from error
    finally:
        theirs.close()
        os.close(log)
        streams.close_rank_ends()
    session = Session(guarded, ours, streams, attempt)
    guarded.set_leaders([], ours=[session.agent_pid])
    session._say(_request(plan, run_dir, streams, attempt))  # noqa: SLF001  # same module
    return session


def _request(
    plan: LaunchPlan, run_dir: RunDir, streams: RankStreams, attempt: int
) -> dict[str, Any]:
    """Spell puffrun.agent.main.AgentRequest, which the launcher must not import."""
    return {
        "run_id": f"{plan.run_id}-{attempt}",
        "argv": list(plan.argv),
        "ranks_per_node": plan.ranks_per_node,
        "nodes": plan.nodes,
        "node_rank": plan.node_rank,
        "master_addr": LOOPBACK,
        "master_port": None,
        "log_dir": str(run_dir.torchrun_dir),
        "inject_dir": str(INJECT_DIR),
        "attempt": attempt,
        "stdio": [list(triple) for triple in streams.stdio],
        "preload": plan.preload,
    }


def _agent_env(plan: LaunchPlan) -> dict[str, str]:
    return {
        **dict(plan.env),
        ENV_RUN_ID: plan.run_id,
        ENV_RUN_DIR: str(plan.run_dir),
    }
