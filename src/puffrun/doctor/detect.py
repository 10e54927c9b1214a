"""Reads the machine once; everything that may hang has a deadline."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from puffrun.cluster import Allocation, detect_allocation
from puffrun.config import RunConfig
from puffrun.doctor.detect_project import detect_project
from puffrun.doctor.detect_software import detect_gpus, detect_software
from puffrun.doctor.detect_system import (
    detect_container,
    detect_limits,
    detect_locks,
    detect_network,
    detect_shm,
    detect_spaces,
    detect_tracing,
)
from puffrun.doctor.machine_facts import Facts
from puffrun.doctor.orphans import detect_orphans
from puffrun.errors import UsageError
from puffrun.plan.rank_environment import is_launcher_variable
from puffrun.process import run_captured

_COLLECTIVE = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TP_SOCKET_IFNAME")
_HARMLESS = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_VERSION")


def detect_facts(config: RunConfig, environ: Mapping[str, str], python: str) -> Facts:
    """Look at everything; `python` is the interpreter of the ranks.

    Raises:
        UsageError: the config makes no sense.
    """
    with ThreadPoolExecutor(2, "doctor") as pool:  # importing torch and resolving names take time
        software = pool.submit(detect_software, environ, python)
        network = pool.submit(detect_network)
        allocation, problem = _detect_allocation(environ)
        gpus = detect_gpus(allocation, environ)
        project = detect_project(config, environ, allocation, problem)
        return Facts(
            software=software.result(),
            gpus=gpus,
            limits=detect_limits(),
            shm=detect_shm(),
            network=network.result(),
            launcher_variables=tuple(
                (n, v) for n, v in sorted(environ.items()) if is_launcher_variable(n)
            ),
            collective_variables=tuple(
                (name, value)
                for name, value in sorted(environ.items())
                if name.startswith(_COLLECTIVE) and name not in _HARMLESS
            ),
            orphans=detect_orphans(),
            spaces=detect_spaces(config.state_dir, Path(environ.get("TMPDIR") or "/tmp")),  # noqa: S108 - what Python falls back to
            locks=detect_locks(config.state_dir, python),
            tracing=detect_tracing(environ, python),
            project=project,
            in_container=detect_container(environ),
        )


def _detect_allocation(environ: Mapping[str, str]) -> tuple[Allocation, str | None]:
    """Take what there is; what Slurm gives and cannot work is a finding, not the end."""
    try:
        return detect_allocation(environ, run_captured), None
    except UsageError as error:
        return detect_allocation({"CUDA_VISIBLE_DEVICES": ""}, run_captured, nodes=1), error.message
