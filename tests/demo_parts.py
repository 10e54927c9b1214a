"""Builds the demo's C parts as its config says, and starts it under a real torchrun."""

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "src" / "puffrun" / "demo"
TIME_LIMIT_S = 280.0


@dataclass(frozen=True)
class Parts:
    dir: Path

    @property
    def library(self) -> Path:
        return self.dir / "libdrive.so"

    @property
    def visualize(self) -> Path:
        return self.dir / "visualize"


def build_parts(directory: Path, *flags: str) -> Parts:
    config = tomllib.loads((ROOT / "configs" / "default.toml").read_text())
    for artifact in config["artifacts"].values():
        command = [part.replace("{out}", str(directory)) for part in artifact["cmd"]]
        command[1:1] = ["-Wall", "-Wextra", "-Werror", *flags]
        subprocess.run(command, cwd=DEMO, check=True, timeout=60)
    return Parts(directory)


def run_visualize(parts: Parts, *args: object) -> "subprocess.CompletedProcess[str]":
    command = [parts.visualize, *map(str, args)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


def demo_environ(parts: Parts, **extra: str) -> dict[str, str]:
    environ = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore:Failed to initialize NumPy"}
    for name in ("DRIVE_ENV", "VISUALIZE"):
        environ[f"PUFFRUN_ARTIFACT_{name}"] = str(parts.dir)
    return environ | extra


@contextmanager
def start_demo(
    parts: Parts, cwd: Path, *args: object, ranks: int = 2, **environ: str
) -> Iterator["subprocess.Popen[str]"]:
    """Start torchrun in a session of its own; whatever happens, nothing of it is left."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={ranks}", "-m", "puffrun.demo.train", *map(str, args)]
    popen = subprocess.Popen(
        command,
        cwd=cwd,
        env=demo_environ(parts, **environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield popen
    finally:
        if popen.poll() is None:
            for pid in [*find_children(popen.pid), popen.pid]:
                os.kill(pid, signal.SIGKILL)
        popen.communicate(timeout=30)


def run_demo(
    parts: Parts, cwd: Path, *args: object, ranks: int = 2, **environ: str
) -> "subprocess.CompletedProcess[str]":
    with start_demo(parts, cwd, *args, ranks=ranks, **environ) as popen:
        stdout, stderr = popen.communicate(timeout=TIME_LIMIT_S)
    return subprocess.CompletedProcess(popen.args, popen.returncode, stdout, stderr)


def find_children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]
