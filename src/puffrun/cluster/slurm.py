"""Slurm's allocation, read from its environment: a table of names and pure functions.

Only step variables are trusted: inside `srun` many job-level ones describe another geometry.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from puffrun.errors import UsageError

STEP_ID = "SLURM_STEP_ID"
JOB_ID = "SLURM_JOB_ID"
JOB_NODES = "SLURM_JOB_NUM_NODES"
NODE_RANK = "SLURM_NODEID"
STEP_NODES = "SLURM_STEP_NUM_NODES"
STEP_TASKS = "SLURM_STEP_NUM_TASKS"
STEP_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"

_FIRST_SPECIAL_STEP = 0xFFFFFFF0  # batch, extern, interactive and their kin


@dataclass(frozen=True)
class SlurmStep:
    """One puffrun per node, started by srun; without Slurm it is this node alone."""

    nodes: int = 1
    node_rank: int = 0


def find_slurm_step(environ: Mapping[str, str], *, alone: bool = False) -> SlurmStep:
    """Return the geometry of the srun step that this process belongs to.

    `alone` says that the user asked for this node only, whatever Slurm gave.

    Raises:
        UsageError: the step has more tasks than nodes, or there is no step in a job of several
            nodes.
    """
    step_id = environ.get(STEP_ID, "")
    if not step_id.isdecimal() or int(step_id) >= _FIRST_SPECIAL_STEP:
        if not alone:
            _refuse_batch_shell(environ)
        return SlurmStep()
    nodes = _read_number(environ, STEP_NODES, 1)
    _refuse_task_per_rank(environ, nodes)
    return SlurmStep() if alone else SlurmStep(nodes, _read_number(environ, NODE_RANK, 0))


def _refuse_task_per_rank(environ: Mapping[str, str], nodes: int) -> None:
    tasks = _read_number(environ, STEP_TASKS, nodes)
    layout = environ.get(STEP_TASKS_PER_NODE, "")
    if tasks > nodes or any(count > 1 for count in parse_tasks_per_node(layout)):
        raise UsageError(
            f"srun started {tasks} tasks on {nodes} node{'s' if nodes > 1 else ''} "
            f"({STEP_TASKS_PER_NODE}={layout}); puffrun starts the ranks itself",
            hint="`srun --ntasks-per-node=1 puffrun train …`",
        )


def _refuse_batch_shell(environ: Mapping[str, str]) -> None:
    nodes = _read_number(environ, JOB_NODES, 1)
    if environ.get(JOB_ID) and nodes > 1:
        raise UsageError(
            f"this is the batch shell of a job with {nodes} nodes, so only this one would train",
            hint="put `srun --ntasks-per-node=1` in front, or `--nodes 1` to use this node alone",
        )


def _read_number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if text and not text.isdecimal():
        raise UsageError(f"Slurm's {name} is `{text}`, not a number")
    return int(text) if text else default


def parse_tasks_per_node(text: str) -> tuple[int, ...]:
    """Read Slurm's `2(x3),1` as (2, 2, 2, 1); empty for an empty text.

    Raises:
        UsageError: it is something else.
    """
    counts: list[int] = []
    for word in text.split(",") if text else ():
        found = re.fullmatch(r"(\d{1,9})(?:\(x(\d{1,7})\))?", word)
        if found is None:
            raise UsageError(f"Slurm's {STEP_TASKS_PER_NODE} is `{text}`, not as in `2(x3),1`")
        counts += [int(found[1])] * int(found[2] or 1)
    return tuple(counts)
