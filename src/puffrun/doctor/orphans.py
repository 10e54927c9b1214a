"""Finds ranks whose launcher is gone: torchrun leaves them behind when it is killed."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from puffrun.doctor.machine_facts import Orphan
from puffrun.process import find_stat, read_stats

# programs and modules that look after ranks
_PROGRAMS = frozenset({"torchrun", "torchrunx", "puffrun", "accelerate", "deepspeed", "horovodrun"})
_MODULES = ("torch.distributed.", "puffrun", "accelerate.", "deepspeed.")
_GUARDIAN = "puffrun/process/guardian.py"


@dataclass(frozen=True)
class Parent:
    """The process that a rank hangs on. `has_torch`: no torchrun agent lives without."""

    pid: int
    name: str = ""
    argv: tuple[str, ...] = ()
    is_rank: bool = False
    has_torch: bool = False


def detect_orphans() -> tuple[Orphan, ...]:
    """Look at the environments of all processes that this user may read."""
    found = []
    for stat in read_stats().values():
        environment = read_environment(stat.pid) if stat.alive else {}
        if not is_rank(environment):
            continue
        parent = _read_parent(stat.ppid)
        if is_adopter(parent):
            found.append(
                Orphan(
                    pid=stat.pid,
                    rank=environment["RANK"],
                    run_id=environment["TORCHELASTIC_RUN_ID"],
                    command=" ".join(_read_argv(stat.pid))[:80] or stat.name,
                    parent=f"pid {parent.pid}" + (f", {parent.name}" if parent.name else ""),
                )
            )
    return tuple(found)


def is_rank(environment: Mapping[str, str]) -> bool:
    """Tell a rank of torchrun, or a child of one, by what torchrun gives it."""
    return {"RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"} <= environment.keys()


def is_adopter(parent: Parent) -> bool:
    """Tell whether a rank's parent can only have adopted it: init, or what never starts ranks."""
    if parent.pid == 1:
        return True
    if parent.is_rank or parent.has_torch:
        return False
    modules = [after for word, after in pairwise(parent.argv) if word == "-m"]
    if any(module.startswith(_MODULES) for module in modules):
        return False
    words = parent.argv[:4]
    return not any(Path(word).name in _PROGRAMS or word.endswith(_GUARDIAN) for word in words)


def _read_parent(pid: int) -> Parent:
    stat = find_stat(pid)
    return Parent(
        pid=pid,
        name=stat.name if stat else "",
        argv=_read_argv(pid),
        is_rank=is_rank(read_environment(pid)),
        has_torch=_has_torch(pid),
    )


def _has_torch(pid: int) -> bool:
    """Look for torch among the loaded libraries; a process that may not be read may have it."""
    try:
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except FileNotFoundError:
        return False
    except OSError:
        return True


def read_environment(pid: int) -> dict[str, str]:
    """Read what a process was started with; empty when it may not be read."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in data.decode("utf-8", "replace").split("\0"))
    return {name: value for name, separator, value in pairs if separator}


def _read_argv(pid: int) -> tuple[str, ...]:
    try:
        data = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(data.decode("utf-8", "replace").rstrip("\0").split("\0"))
