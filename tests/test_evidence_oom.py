import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import PROGRAMS, puffrun, wait_for

from puffrun.evidence.oom import OomWatch, find_oom_victims

LOG = """\
6,1,1000,-;python invoked oom-killer: gfp_mask=0xcc0
3,2,2000,-;Out of memory: Killed process 41 (python) total-vm:1kB, UID:0
 SUBSYSTEM=memory
3,3,9000,-;Memory cgroup out of memory: Killed process 42 (python) total-vm:1kB, UID:0
"""
MEMORY_LIMIT = 300 << 20
V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@pytest.mark.parametrize(("since_us", "victims"), [(0, {41, 42}), (5000, {42}), (9001, set())])
def test_the_kernels_log_names_the_victims(since_us: int, victims: set[int]) -> None:
    assert find_oom_victims(LOG, since_us) == victims


def test_nobody_was_killed_for_memory() -> None:
    assert not OomWatch().was_killed(os.getpid())


@contextmanager
def memory_cgroup() -> Iterator[Path]:
    """A cgroup that may use 300 MB; whoever runs this as root has one."""
    root, limit = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
    group = root / f"puffrun-test-{os.getpid()}"
    group.mkdir()
    try:
        (group / limit).write_text(str(MEMORY_LIMIT))
        yield group
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text(), "the cgroup to be empty")
        group.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a memory cgroup")
def test_a_rank_that_eats_all_memory(tmp_path: Path) -> None:
    with (
        memory_cgroup() as group,
        puffrun("--cpus", "2", PROGRAMS / "eat_memory.py", group, cwd=tmp_path) as run,
    ):
        assert run.wait() == 128 + signal.SIGKILL
        cause = run.report["cause"]
        assert (cause["kind"], cause["rank"]) == ("oom", 1)
        assert "memory" in run.stderr
