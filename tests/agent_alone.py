"""Runs the agent without its launcher: one agent, many ranks, each with files for its streams.

Nobody ends the ranks when one falls, so one start of an agent shows as many ends as it has ranks.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import clean_environ

import puffrun
from puffrun.agent.link import AgentRequest
from puffrun.process import find_descendants, read_stats, send_signal

PACKAGE = Path(puffrun.__file__).parent
LIMIT_S = 120.0


@dataclass
class Ended:
    """How a rank ended, and what it printed."""

    returncode: int
    out: str
    err: str
    error: dict[str, Any] | None


@contextmanager
def agent(
    argv: list[str], ranks: int, where: Path, *, preload: bool, **env: str
) -> Iterator[tuple]:
    """Start an agent that waits for `go`; yields (process, lines from it, say)."""
    for name in ("errors", "ranks"):
        (where / name).mkdir(parents=True)
    ours, theirs = socket.socketpair()
    ours.settimeout(LIMIT_S)
    with ExitStack() as stack:
        stdio = [_open_streams(stack, where, rank) for rank in range(ranks)]
        process = subprocess.Popen(
            [sys.executable, "-u", str(PACKAGE / "agent" / "start.py"), str(theirs.fileno())],
            cwd=argv_dir(argv),
            env=clean_environ(PUFFRUN_RUN_DIR=str(where), PUFFRUN_RUN_ID="alone", **env),
            stdin=subprocess.DEVNULL,
            stdout=stack.enter_context((where / "agent.log").open("wb")),
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno(), *{fd for triple in stdio for fd in triple}],
        )
        theirs.close()
    try:
        request = AgentRequest(
            run_id="alone",
            argv=argv,
            ranks_per_node=ranks,
            nodes=1,
            node_rank=0,
            master_addr="127.0.0.1",
            master_port=None,
            log_dir=str(where / "torchrun"),
            attempt=0,
            inject_dir=str(PACKAGE / "rank" / "inject"),
            stdio=stdio,
            preload=preload,
        )

        def say(message: dict) -> None:
            ours.sendall(json.dumps(message).encode() + b"\n")

        say(asdict(request))
        with ours.makefile("rb") as lines:
            yield process, map(json.loads, lines), say
    finally:
        left = find_descendants([process.pid], read_stats())
        process.kill()
        process.wait(10)
        for stat in left:
            send_signal(stat, 9)
        ours.close()


def argv_dir(argv: list[str]) -> Path:
    return Path(argv[2]).parent if argv[2] != "-m" else Path(__file__).parent / "programs"


def _open_streams(stack: ExitStack, where: Path, rank: int) -> list[int]:
    (where / f"in-{rank}").write_text("typed\n")
    out, err = where / f"out-{rank}", where / f"err-{rank}"
    files = [(where / f"in-{rank}").open("rb"), out.open("wb"), err.open("wb")]
    return [stack.enter_context(file).fileno() for file in files]


def run_ranks(
    argv: list[str], ranks: int, where: Path, *, preload: bool, **env: str
) -> list[Ended]:
    """Run ranks to their ends; by rank."""
    codes: dict[int, int] = {}
    with agent(argv, ranks, where, preload=preload, **env) as (_, messages, say):
        ready = next(messages)
        assert "not_preloaded" not in ready, ready
        assert ("zygote" in ready) == preload
        say({"go": {"env": {}}})
        for message in messages:
            assert "crashed" not in message, message
            if "exited" in message:
                codes[message["exited"]] = message["returncode"]
            if len(codes) == ranks:
                break
    return [_read_end(where, rank, codes[rank]) for rank in range(ranks)]


def _read_end(where: Path, rank: int, code: int) -> Ended:
    path = where / "errors" / f"rank-{rank}.json"
    error = json.loads(path.read_text()) if path.exists() else None
    if error is not None:
        error = {key: value for key, value in error.items() if key not in {"at", "pid"}}
    out, err = (os.fsdecode((where / f"{name}-{rank}").read_bytes()) for name in ("out", "err"))
    return Ended(code, out, re.sub("0x[0-9a-f]+", "0x…", err), error)
