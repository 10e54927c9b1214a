"""The `LaunchPlan`: a launch is data until the last moment."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from puffrun.config import ArtifactSpec


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that `launch` needs, decided. All paths are absolute; durations in seconds.

    `argv` is what each rank executes: (python, "-u", "train.py", ...). `env` is the whole
    environment of the agent (the ranks inherit it; torchrun adds RANK and its kin);
    `env_set` is the part that puffrun or the config put there, for display and for plan.json;
    `env_ignored` are variables of an outer launcher that were dropped.
    `devices` are CUDA_VISIBLE_DEVICES entries, one per local rank; empty on the CPU.
    """

    run_id: str
    run_dir: Path
    state_dir: Path
    root_dir: Path
    argv: tuple[str, ...]
    program: str  # how the card and the first line call it, e.g. `train.py` or `-m pkg.mod`
    cwd: Path
    backend: Literal["gloo", "nccl"]
    ranks_per_node: int
    nodes: int
    node_rank: int
    rdzv_endpoint: str | None
    devices: tuple[str, ...]
    device_name: str  # "NVIDIA H100", "CPU"
    env: tuple[tuple[str, str], ...]
    env_set: tuple[tuple[str, str, str], ...]  # (name, value, why)
    env_ignored: tuple[tuple[str, str], ...]
    artifacts: tuple[ArtifactSpec, ...]
    grace_s: float
    stall_timeout_s: float
    exit_timeout_s: float
    dead_child_timeout_s: float
    timeout_s: float | None
    max_restarts: int
    preload: bool
    show_ranks: tuple[int, ...] | Literal["all"]
    again: str  # the command line that starts the same run again
    config_words: tuple[str, ...] = ()  # ("-c", FILE) where the config was not just found
    build_command: str = "puffrun build-artifacts"  # with those words; names may follow

    @property
    def world_size(self) -> int:
        """Number of ranks over all nodes."""
        return self.nodes * self.ranks_per_node

    @property
    def node_ranks(self) -> range:
        """The ranks of this node."""
        first = self.node_rank * self.ranks_per_node
        return range(first, first + self.ranks_per_node)
