"""What the part inside a rank costs: start-up and all_reduce of 4 KB, with it and without it.

The bench starts the two ranks itself, as the agent does, so that nothing else differs. `without`
is measured twice in the same turn: the ratio of the two is the noise.
"""

import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import LIMIT_S, PROGRAMS, print_table

import puffrun

INJECT = Path(puffrun.__file__).parent / "rank" / "inject"
ROUNDS = 8
REDUCTIONS = 1500
WAYS = ("without", "again", "with")
COLUMNS = ("start to end, s", "the same, CPU s", "all_reduce 4 KB, us")


def main() -> dict:
    """Measure in turn; print medians and ratios."""
    found: dict[str, list[tuple[float, ...]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as name:
        for number in range(ROUNDS + 1):
            for way in (*WAYS[number % 3 :], *WAYS[: number % 3]):
                measured = measure(Path(name) / f"{way}-{number}", injected=way == "with")
                if number > 0:  # the first turn warms the page cache
                    found[way].append(measured)
    medians = {
        way: [
            statistics.median(each[column] for each in found[way]) for column in range(len(COLUMNS))
        ]
        for way in WAYS
    }
    rows = []
    result: dict[str, float] = {}
    for column, what in enumerate(COLUMNS):
        base, again, injected = (medians[way][column] for way in WAYS)
        result |= {
            f"{what} without": round(base, 3),
            f"{what} with": round(injected, 3),
            f"{what} ratio": round(injected / statistics.mean((base, again)), 3),
            f"{what} noise": round(max(base, again) / min(base, again), 3),
        }
        rows.append((what, f"{base:.3f}", f"{again:.3f}", f"{injected:.3f}"))
        rows[-1] += (f"{result[f'{what} ratio']:.3f}", f"{result[f'{what} noise']:.3f}")
    print_table(("2 ranks, medians", "without", "again", "with", "ratio", "noise"), rows)
    return result


def measure(run_dir: Path, *, injected: bool) -> tuple[float, float, float]:
    """Run two ranks; return wall-clock and CPU seconds, and the median all_reduce in us."""
    (run_dir / "ranks").mkdir(parents=True)
    (run_dir / "errors").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PUFFRUN_", "PYTHONPATH"))}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    env |= {"PUFFRUN_RUN_DIR": str(run_dir), "PUFFRUN_AGENT_PID": str(os.getpid())}
    env |= {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1"}
    if injected:
        env["PYTHONPATH"] = str(INJECT)
    began, cpu_before = time.monotonic(), cpu_of_children()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(PROGRAMS / "hang_reduce.py"), str(REDUCTIONS)],
            env=env | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    took_s, cpu_s = time.monotonic() - began, cpu_of_children() - cpu_before
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"the ranks exited {[rank.returncode for rank in ranks]}")
    if injected and '"server": true' not in (run_dir / "ranks" / "rank-0.jsonl").read_text():
        raise SystemExit("the rank was to be watched, and was not")
    return took_s, cpu_s, float(outputs[0])


def cpu_of_children() -> float:
    """Sum the CPU seconds of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    print(main())
