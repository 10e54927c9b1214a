"""What the machine or the cluster gives: an `Allocation`, detected without importing torch."""

from puffrun.cluster.allocation import Allocation, detect_allocation
from puffrun.cluster.gpus import Inventory, detect_gpus
from puffrun.cluster.nvml import Gpu
from puffrun.cluster.slurm import SlurmStep, find_slurm_step
from puffrun.cluster.visible import VisibleGpu, find_gpu

__all__ = [
    "Allocation",
    "Gpu",
    "Inventory",
    "SlurmStep",
    "VisibleGpu",
    "detect_allocation",
    "detect_gpus",
    "find_gpu",
    "find_slurm_step",
]
