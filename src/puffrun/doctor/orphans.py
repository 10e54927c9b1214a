"""Finds ranks whose launcher is gone: torchrun leaves them behind when it is killed."""

import os
from collections.abc import Mapping
from pathlib import Path

from puffrun.doctor.facts import Orphan
from puffrun.process import ProcStat, read_stats

# words in a command line that say that this process looks after ranks
LAUNCHERS = ("torchrun", "torch.distributed", "torch/distributed", "puffrun", "accelerate",
             "deepspeed", "torchrunx", "ray::", "slurmstepd", "horovod")  # fmt: skip


def detect_orphans() -> tuple[Orphan, ...]:
    """Look at the environments of all processes that this user may read."""
    stats = read_stats()
    found = []
    for stat in stats.values():
        if not stat.alive or stat.pid == os.getpid():
            continue
        environment = read_environment(stat.pid)
        if not is_rank(environment):
            continue
        parent = stats.get(stat.ppid)
        if is_orphan(parent, _read_command(stat.ppid), read_environment(stat.ppid)):
            found.append(
                Orphan(
                    pid=stat.pid,
                    rank=environment["RANK"],
                    run_id=environment["TORCHELASTIC_RUN_ID"],
                    command=_read_command(stat.pid)[:80] or stat.name,
                    parent=f"pid {stat.ppid}" + (f", {parent.name}" if parent else ""),
                )
            )
    return tuple(found)


def is_rank(environment: Mapping[str, str]) -> bool:
    """Tell a rank of torchrun, or a child of one, by what torchrun gives it."""
    return {"RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"} <= environment.keys()


def is_orphan(
    parent: ProcStat | None, parent_command: str, parent_environment: Mapping[str, str]
) -> bool:
    """Tell whether a rank was adopted: its parent neither starts ranks nor is one."""
    if parent is None or is_rank(parent_environment):
        return False
    return not any(word in parent_command for word in LAUNCHERS)


def read_environment(pid: int) -> dict[str, str]:
    """Read what a process was started with; empty when it may not be read."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in data.decode("utf-8", "replace").split("\0"))
    return {name: value for name, separator, value in pairs if separator}


def _read_command(pid: int) -> str:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ""
    return data.replace(b"\0", b" ").decode("utf-8", "replace").strip()
