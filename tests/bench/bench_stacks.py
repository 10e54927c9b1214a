"""How long it takes to ask 8 ranks where they are: all answer, then two that cannot."""

import os
import signal
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import PROGRAMS, Run, puffrun, wait_for
from measuring import print_table

from puffrun.evidence import collect_evidence
from puffrun.process import find_stat
from puffrun.rundir import RunDir

RANKS, ROUNDS = 8, 5
OPTIONS = ("--cpus", str(RANKS), "--stall-timeout", "0", "--grace", "1")
CASES = {  # → rank that is stopped, target in seconds
    "skip_barrier": (None, 3.0),
    "c_sleep_with_gil": (6, 6.0),
}


def measure(case: str, stopped: int | None) -> float:
    """Return the median seconds of asking all the ranks of a case of `hang_cases.py`."""
    with (
        TemporaryDirectory() as directory,
        puffrun(*OPTIONS, PROGRAMS / "hang_cases.py", case, cwd=Path(directory)) as run,
    ):
        pids = {rank: run.rank_pid(rank) for rank in range(RANKS)}
        wait_for(lambda: all("steps" in run.log(rank) for rank in pids), "every rank's steps")
        wait_for(lambda: _is_still(pids), "the ranks to hang")
        if stopped is not None:
            os.kill(pids[stopped], signal.SIGSTOP)
        return statistics.median(_ask(run, pids) for _ in range(ROUNDS))


def _is_still(pids: dict[int, int]) -> bool:
    """Whether no rank spends CPU time any more."""

    def read_cpu() -> list[int]:
        return [stat.cpu for stat in map(find_stat, pids.values()) if stat is not None]

    before = read_cpu()
    time.sleep(1.0)
    return read_cpu() == before


def _ask(run: Run, pids: dict[int, int]) -> float:
    began = time.monotonic()
    evidence = collect_evidence(RunDir(run.dir), pids)
    took_s = time.monotonic() - began
    assert len(evidence) == RANKS
    return took_s


def main() -> dict:
    rows, result = [], {}
    for case, (stopped, target_s) in CASES.items():
        took_s = round(measure(case, stopped), 3)
        result[case] = {"s": took_s, "target_s": target_s}
        silent = "all answer" if stopped is None else "one stopped, one holds the GIL"
        rows.append([silent, took_s, f"≤ {target_s:g}"])
    print_table([f"{RANKS} ranks", "s, asked at once", "target"], rows)
    return result
