"""What a steady run costs: the CPU and the memory of puffrun's own processes, 8 ranks, 60 s."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import PROGRAMS, puffrun, wait_for
from measuring import print_table

from puffrun.process import find_stat

RANKS, SECONDS = 8, 60.0
TARGET_CPU, TARGET_MB = 0.005, 80.0
TICKS = os.sysconf("SC_CLK_TCK")


def read_rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def main() -> dict:
    with (
        TemporaryDirectory() as directory,
        puffrun("--cpus", str(RANKS), PROGRAMS / "stay.py", cwd=Path(directory)) as run,
    ):
        wait_for(lambda: len(run.events("RankStarted")) == RANKS, "all ranks")
        pids = {
            "launcher": run.popen.pid,
            "guardian": run.guardian_pid(),
            "agent (torchrun)": run.agent_pid(),
        }
        time.sleep(2.0)  # what start-up leaves to do
        before = {name: find_stat(pid) for name, pid in pids.items()}
        began = time.monotonic()
        time.sleep(SECONDS)
        took = time.monotonic() - began
        rows, result = [], {}
        for name, pid in pids.items():
            first, last = before[name], find_stat(pid)
            assert first is not None
            assert last is not None
            cpu = (last.cpu - first.cpu) / TICKS / took
            result[name] = {"cpu": round(cpu, 5), "rss_mb": round(read_rss_mb(pid), 1)}
            rows.append([name, f"{100 * cpu:.2f} %", result[name]["rss_mb"]])
    print_table(
        ["process", f"CPU of one core (≤ {100 * TARGET_CPU} %)", f"MB (≤ {TARGET_MB})"], rows
    )
    return result
