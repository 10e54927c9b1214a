"""What exactly a build runs: its argv, its environment, its share of the machine."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from puffrun.cluster.cores import detect_cores
from puffrun.config import ArtifactSpec
from puffrun.rundir import artifact_env_name

ENV_OUT = "PUFFRUN_OUT"
BYTES_PER_JOB = 2 << 30  # a C++ compiler on template-heavy code; nvcc may want twice as much
CGROUP_DIR = Path("/sys/fs/cgroup")
MEMINFO_PATH = Path("/proc/meminfo")


@dataclass(frozen=True)
class Recipe:
    """A command ready to run."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path


def make_recipe(
    spec: ArtifactSpec,
    root_dir: Path,
    out_dir: Path,
    needs: Mapping[str, Path],
    env: Mapping[str, str],
) -> Recipe:
    """Fill in `{out}`, `{python}` and `{artifact:NAME}`, and export the same to the command."""
    exported = {artifact_env_name(name): str(path) for name, path in needs.items()}
    return Recipe(
        argv=tuple(_fill(part, out_dir, needs) for part in spec.cmd),
        env={**env, **exported, ENV_OUT: str(out_dir)},
        cwd=root_dir,
    )


def _fill(part: str, out_dir: Path, needs: Mapping[str, Path]) -> str:
    """Replace only what is ours: `${x}` and `{}` of other languages stay as they are."""
    part = part.replace("{out}", str(out_dir)).replace("{python}", sys.executable)
    for name, path in needs.items():
        part = part.replace(f"{{artifact:{name}}}", str(path))
    return part


def share_jobs(env: Mapping[str, str], jobs: int) -> dict[str, str]:
    """Tell build tools how many jobs to run, where the user has not told them.

    No job server: make 4.3 aborts on ninja's kind, and ninja does not speak make's. One that an
    outer make passed on is out of reach here, so it counts as not told.
    """
    shares = {
        "MAX_JOBS": str(jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        "NVCC_THREADS": "1",
        "MAKEFLAGS": f"-j{jobs}",
    }
    told = {**shares, **env}
    if not env.get("MAKEFLAGS") or "--jobserver" in env["MAKEFLAGS"]:
        told["MAKEFLAGS"] = shares["MAKEFLAGS"]
    return told


def decide_slots(cores: int, free_bytes: int | None) -> int:
    """Decide how many compiler jobs fit: one a core, 2 GiB each, 15 % of memory kept free."""
    if free_bytes is None:
        return max(1, cores)
    return max(1, min(cores, int(free_bytes * 0.85) // BYTES_PER_JOB))


def detect_slots() -> int:
    """Find out how many compiler jobs fit on this machine, in this cgroup."""
    known = [free for free in (_find_free_bytes(), _find_cgroup_free_bytes()) if free is not None]
    return decide_slots(detect_cores(), min(known) if known else None)


def _find_free_bytes() -> int | None:
    for line in _read(MEMINFO_PATH).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _find_cgroup_free_bytes() -> int | None:
    limit, used = _read(CGROUP_DIR / "memory.max"), _read(CGROUP_DIR / "memory.current")
    if not limit.strip().isdecimal() or not used.strip().isdecimal():
        return None
    return max(0, int(limit) - int(used))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
