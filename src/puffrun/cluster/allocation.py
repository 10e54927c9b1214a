"""The `Allocation`: what this run may use, before anybody decides how."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from puffrun.cluster.cores import detect_cores
from puffrun.cluster.gpus import Inventory, RunCaptured, detect_gpus
from puffrun.cluster.slurm import find_slurm_step
from puffrun.cluster.visible import VisibleGpu, find_visible

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Allocation:
    """What the machine or the cluster gives.

    `gpus` are the ones that CUDA would show, in its order; `inventory` has all of the machine.
    `visible_variable` is CUDA_VISIBLE_DEVICES as it was found, None when unset.
    """

    cores: int
    inventory: Inventory = field(default_factory=Inventory)
    gpus: tuple[VisibleGpu, ...] = ()
    visible_variable: str | None = None
    nodes: int = 1
    node_rank: int = 0


def detect_allocation(
    environ: Mapping[str, str], run_captured: RunCaptured, *, nodes: int | None = None
) -> Allocation:
    """Detect what this process may use; `nodes` is what the user asked for, which beats Slurm.

    Raises:
        UsageError: Slurm started this process in a way that cannot work.
    """
    step = find_slurm_step(environ, alone=nodes == 1)
    inventory = detect_gpus(run_captured)
    variable = environ.get(VISIBLE_VARIABLE)
    return Allocation(
        cores=detect_cores(),
        inventory=inventory,
        gpus=find_visible(inventory.gpus, variable),
        visible_variable=variable,
        nodes=step.nodes,
        node_rank=step.node_rank,
    )
