"""Real ranks without torchrun's start-up: forks of a process that has torch loaded already.

Each rank gets torchrun's variables and the real TCPStore, which this process hosts in the
agent's place. `Ranks.announce` is what the agent says of a dead rank.
"""

import os
import signal
import subprocess
import sys
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import connection, forkserver, get_context
from typing import Any

from harness import QUICK_RESOLVER, clean_environ

from puffrun import barrier
from puffrun.library.agreement.gone_ranks import announce_exit
from puffrun.library.world import make_namespace

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch warns that numpy is not there
    import torch
    import torch.distributed as dist

LIMIT_S = 60.0  # reaching it is the failure
_context = get_context("forkserver")
_context.set_forkserver_preload(
    [
        "ranks",
        "pytest",
        "torch.distributed.tensor",
        "puffrun.library.preflight.guard",
        "puffrun.library.checkpoint",
    ]
)


def _start_forkserver() -> None:
    """Start it so that it finds this module: it does not take over `sys.path` (CPython 3.11)."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


@dataclass
class Answer:
    """What a rank's function returned, or how it raised."""

    rank: int
    value: Any = None
    error: str | None = None
    type: str | None = None
    cause: str | None = None


@dataclass
class Ranks:
    """Live ranks. `mail[rank]` is this side of a pipe that the function may use too."""

    size: int
    env: dict[str, str]
    store: Any
    processes: list[Any] = field(default_factory=list)
    mail: list[connection.Connection] = field(default_factory=list)

    def receive(self, rank: int) -> Any:
        assert self.mail[rank].poll(LIMIT_S), f"rank {rank} said nothing"
        return self.mail[rank].recv()

    def answers(self, *ranks: int) -> list[Answer]:
        return [self.receive(rank) for rank in ranks or range(self.size)]

    def kill(self, rank: int) -> None:
        os.kill(self.processes[rank].pid, signal.SIGKILL)
        self.processes[rank].join(LIMIT_S)

    def announce(self, rank: int) -> None:
        announce_exit(self.store, rank, self.size, self.processes[rank].exitcode)


@contextmanager
def ranks(size: int, function: Callable[..., Any], *args: Any, **env: str) -> Iterator[Ranks]:
    """Run `function(rank, mail, *args)` on `size` ranks; none is left afterwards."""
    _start_forkserver()
    run_id = uuid.uuid4().hex
    server = dist.TCPStore(
        "127.0.0.1", 0, None, is_master=True, timeout=timedelta(seconds=LIMIT_S),
        wait_for_workers=False,
    )  # fmt: skip
    variables = {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(server.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": run_id,
        "OMP_NUM_THREADS": "1",
        **QUICK_RESOLVER,
        **env,
    }
    store = dist.PrefixStore(make_namespace(variables), server.clone())
    run = Ranks(size, variables, store)
    try:
        for rank in range(size):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_run_rank, args=(rank, variables, theirs, function, args)
            )
            process.start()
            theirs.close()
            run.processes.append(process)
            run.mail.append(ours)
        yield run
    finally:
        for process in run.processes:
            process.kill()
            process.join(LIMIT_S)
            process.close()
        for end in run.mail:
            end.close()


def run_ranks(
    size: int, function: Callable[..., Any], *args: Any, together: bool = True, **env: str
) -> list[Answer]:
    """Run `function(rank, mail, *args)` on `size` ranks to its end and return their answers.

    With `together` all have met once before: a connect may take seconds, on one rank and not on
    another, and who fails a second before the others is told without them.
    """
    if together:
        args, function = (function, *args), _run_together
    with ranks(size, function, *args, **env) as run:
        answers = run.answers()
        for process in run.processes:
            process.join(LIMIT_S)
            assert process.exitcode == 0
        return answers


def _run_together(rank: int, mail: connection.Connection, function: Any, *args: Any) -> Any:
    barrier("together")
    return function(rank, mail, *args)


def _run_rank(rank, variables, mail, function, args) -> None:

    os.environ.update(variables, RANK=str(rank), LOCAL_RANK=str(rank))
    os.environ.setdefault("GROUP_RANK", "0")
    torch.set_num_threads(1)
    try:
        answer = Answer(rank, function(rank, mail, *args))
    except Exception as error:  # noqa: BLE001  # whatever it is, the test gets it
        answer = Answer(
            rank,
            error=str(error),
            type=type(error).__name__,
            cause=type(error.__cause__).__name__ if error.__cause__ else None,
            value=traceback.format_exc(),
        )
    mail.send(answer)
    if dist.is_initialized():
        dist.destroy_process_group()


def run_python(program: str) -> str:
    """Run a program in a fresh, single process; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def join_gloo(timeout_s: float = 20.0) -> None:
    """Join the gloo group that a training program would."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))
