"""How many cores this process may really use: its affinity, cut by its cgroup's CPU quota."""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP_DIR = Path("/sys/fs/cgroup")
_MEMBERSHIP_PATH = Path("/proc/self/cgroup")


def detect_cores() -> int:
    """Return the number of usable cores, at least 1."""
    affinity = len(os.sched_getaffinity(0))
    quota = find_quota(_MEMBERSHIP_PATH, _CGROUP_DIR)
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def find_quota(membership_path: Path, cgroup_dir: Path) -> float | None:
    """Return the tightest CPU quota of this process's cgroups, in cores; None without one.

    Reads cgroup v2's `cpu.max` and v1's `cpu.cfs_quota_us`, in the cgroup and all above it.
    """
    try:
        membership = membership_path.read_text()
    except OSError:
        return None
    quotas = []
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            quotas += [_read_v2(d) for d in _ancestors(cgroup_dir, path)]
        elif "cpu" in controllers.split(","):
            quotas += [_read_v1(d) for d in _ancestors(cgroup_dir / "cpu", path)]
    return min((q for q in quotas if q is not None), default=None)


def _ancestors(root_dir: Path, path: str) -> Iterator[Path]:
    """Yield a cgroup's directory and all above it. Outside our namespace only the root is seen."""
    parts = [] if ".." in path else [p for p in path.split("/") if p]
    for count in range(len(parts), -1, -1):
        yield root_dir.joinpath(*parts[:count])


def _read_v2(directory: Path) -> float | None:
    words = _read_words(directory / "cpu.max")
    if len(words) != 2 or words[0] == "max":  # noqa: PLR2004 - "QUOTA PERIOD"
        return None
    return int(words[0]) / int(words[1])


def _read_v1(directory: Path) -> float | None:
    quota = _read_words(directory / "cpu.cfs_quota_us")
    period = _read_words(directory / "cpu.cfs_period_us")
    if not quota or not period or int(quota[0]) <= 0:
        return None
    return int(quota[0]) / int(period[0])


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
