"""From a rank's death to the launcher's exit, and what is left: against torchrun, 4 ranks."""

import os
import signal
import statistics
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

from harness import MARK, clean_environ
from measuring import BIN, PROGRAMS, print_table

from puffrun.process import ProcStat, read_stats, send_signal

RANKS, ROUNDS = 4, 3
WAYS = ("exception", "SIGKILL", "SIGSEGV", "exit-0", "session-children", "ignore-SIGTERM")
NEVER_S = {"exit-0": 12.0}  # torchrun waits for ever there; elsewhere it ends within 45 s
LIMIT_S = 45.0
LAUNCHERS = {
    "puffrun": [
        BIN / "puffrun",
        "train",
        "--cpus",
        RANKS,
        "--grace",
        "2",
        "--exit-timeout",
        "2",
    ],
    "torchrun": [BIN / "torchrun", "--standalone", f"--nproc-per-node={RANKS}"],
}


def find_marked(mark: str) -> list[ProcStat]:
    def is_marked(pid: int) -> bool:
        try:
            return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    return [stat for stat in read_stats().values() if stat.alive and is_marked(stat.pid)]


def run_once(launcher: str, way: str) -> tuple[float | None, int]:
    """Return (seconds from the death to the launcher's exit or None, processes left)."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as directory:
        argv = [*LAUNCHERS[launcher], PROGRAMS / "die.py", way, directory]
        process = subprocess.Popen(
            [str(part) for part in argv],
            cwd=directory,
            env=clean_environ(**{MARK: mark}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(NEVER_S.get(way, LIMIT_S))
            ended_ns = time.monotonic_ns()
        except subprocess.TimeoutExpired:
            ended_ns = 0
        left = [stat for stat in find_marked(mark) if stat.pid != process.pid]
        for stat in find_marked(mark):
            send_signal(stat, signal.SIGKILL)
        process.wait(10)
        fell_ns = int((Path(directory) / "fell").read_text())
    return ((ended_ns - fell_ns) / 1e9 if ended_ns else None), len(left)


def main() -> dict:
    os.environ.setdefault("TMPDIR", tempfile.gettempdir())
    rows, result = [], {}
    for way in WAYS:
        measured: dict[str, list[tuple[float | None, int]]] = {name: [] for name in LAUNCHERS}
        for _ in range(1 if way in NEVER_S else ROUNDS):
            for launcher in LAUNCHERS:
                measured[launcher].append(run_once(launcher, way))
        medians: dict[str, float | None] = {}
        for launcher, runs in measured.items():
            times = [took for took, _ in runs if took is not None]
            medians[launcher] = round(statistics.median(times), 3) if times else None
        left = {launcher: max(count for _, count in runs) for launcher, runs in measured.items()}
        ours, theirs = medians["puffrun"], medians["torchrun"]
        ratio = round(ours / theirs, 3) if ours and theirs else None
        result[way] = {"s": medians, "left": left, "ratio": ratio}
        rows.append([way, ours, left["puffrun"], theirs or "never", left["torchrun"], ratio or "-"])
    print_table(["rank 1", "puffrun s", "left", "torchrun s", "left", "ratio (≤ 0.5)"], rows)
    return result
