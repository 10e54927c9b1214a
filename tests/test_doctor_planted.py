"""doctor on this machine, with faults that are really there."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import clean_environ

from puffrun.process import find_stat, send_signal

DOCTOR = (sys.executable, "-m", "puffrun", "doctor", "--json")
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
NOBODY_FLOCK = "int flock(int fd, int operation) { (void)fd; (void)operation; return 0; }\n"


def doctor(cwd: Path, *, before: tuple[str, ...] = (), commands: str = "", **env: str) -> dict:
    """Run doctor, below `before` and after the shell commands; its findings by check."""
    argv = [*before, *DOCTOR]
    if commands:
        argv = [*before, "sh", "-ec", f'{commands}; exec "$@"', "sh", *DOCTOR]
    done = subprocess.run(
        argv,
        cwd=cwd,
        env=clean_environ(CUDA_VISIBLE_DEVICES="", **env),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.stderr == ""
    verdict = json.loads(done.stdout)
    assert done.returncode == (verdict["verdict"] == "problem")
    return {
        check["name"]: [finding["found"] for finding in check["findings"]]
        for check in verdict["checks"]
        if check["findings"] and check["name"] != "stacks"  # py-spy need not be installed
    }


def namespaces() -> tuple[str, ...]:
    """Own mounts and an own host name; a user who is not root needs an own user namespace."""
    return ("unshare", *(() if os.geteuid() == 0 else ("-r",)), "-m", "-u")


def without_override() -> tuple[str, ...]:
    """Root writes anywhere; without this capability it is like everybody else."""
    if os.geteuid() != 0:
        return ()
    return ("setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override")


@pytest.fixture
def orphan():
    """A process that looks like a rank and whose parent ends: init adopts it."""
    libc = ctypes.CDLL(None, use_errno=True)
    was = ctypes.c_int()
    libc.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    rank = {"RANK": "3", "LOCAL_RANK": "3", "TORCHELASTIC_RUN_ID": "lost-run"}
    started = subprocess.run(
        ["sh", "-c", "sleep 3600 >/dev/null 2>&1 & echo $!"],
        env={**os.environ, **rank},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    stat = find_stat(int(started.stdout))
    try:
        yield stat
    finally:
        send_signal(stat, signal.SIGKILL)
        libc.prctl(PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0)


def test_nothing_is_found_on_a_clean_machine(tmp_path):
    found = doctor(tmp_path)
    found.pop("orphans", None)  # what other programs of this machine left is not ours to judge
    assert found == {}
    assert list(tmp_path.iterdir()) == []


def test_planted_in_the_project_and_the_environment(tmp_path, orphan):
    (tmp_path / "_C.cpython-310-x86_64-linux-gnu.so").touch()
    (tmp_path / "a.c").touch()
    (tmp_path / "flock.c").write_text(NOBODY_FLOCK)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "flock.c", "-o", "flock.so"],
        cwd=tmp_path,
        check=True,
        timeout=60,
    )
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c10')\n")
    (tmp_path / "puffrun.toml").write_text(
        '[train]\nscript = "t.py"\nargs = ["--vec.num-workers", "999"]\n'
        "[launch]\ncpus = 2\n"
        '[artifacts.thing]\ncmd = ["nosuchcc", "a.c"]\ninputs = ["a.c"]\n'
        'outputs = ["thing"]\ntools = ["nosuchcc"]\n'
    )
    found = doctor(
        tmp_path,
        commands="ulimit -n 64",
        PET_NNODES="2",
        NCCL_SOCKET_IFNAME="nosuch7",
        LD_PRELOAD=str(tmp_path / "flock.so"),
        PYTHONPATH=str(tmp_path),
    )
    orphans = found.pop("orphans")
    assert any(f"pid {orphan.pid} is rank 3 of run lost-run" in text for text in orphans)
    expected = {
        "torch": ["undefined symbol: _ZN3c10"],
        "open files": ["a process may open 64 files"],
        "environment": ["PET_NNODES=2", "NCCL_SOCKET_IFNAME=nosuch7"],
        "locks": ["two processes held it at once"],
        "cores": ["2 ranks x 999 workers"],
        "artifacts": ["artifact `thing` needs nosuchcc"],
        "extensions": ["_C.cpython-310-x86_64-linux-gnu.so is for another Python"],
    }
    assert list(found) == list(expected)
    for name, texts in expected.items():
        for text, said in zip(texts, found[name], strict=True):
            assert text in said


def test_planted_in_the_machine(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    commands = (
        "mount -t tmpfs -o size=1m tmpfs /dev/shm; "
        "dd if=/dev/zero of=/dev/shm/torch_left bs=1k count=900 2>/dev/null; "
        "hostname nosuch-node-7"
    )
    commands += f'; exec {" ".join(without_override())} "$@"' if without_override() else ""
    found = doctor(locked, before=namespaces(), commands=commands)
    found.pop("orphans", None)
    assert list(found) == ["shared memory", "host name", "disk"]
    assert "torch_left 900 KiB" in found["shared memory"][0]
    assert "`nosuch-node-7` does not resolve" in found["host name"][0]
    assert f"{locked} cannot be used: it is not writable" in found["disk"][0]
