"""Asking a live run what it does, and runs that only look as if they hung."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import PROGRAMS, Run, ask, puffrun, wait_for

from puffrun.evidence import collect_evidence
from puffrun.rundir import RunDir

STALL_S = "4"  # ranks that connect may wait some seconds for a name, and do nothing meanwhile


def wait_for_steps(run: Run, ranks: int) -> dict[int, int]:
    pids = {rank: run.rank_pid(rank) for rank in range(ranks)}
    wait_for(lambda: all("steps" in run.log(rank) for rank in pids), "every rank's steps")
    return pids


def test_eight_ranks_are_asked_and_the_run_goes_on(tmp_path: Path) -> None:
    options = ("--cpus", "8", "--preload", "--stall-timeout", "0", "--grace", "1")
    program = (PROGRAMS / "hang_cases.py", "c_sleep_with_gil")
    with puffrun(*options, *program, cwd=tmp_path) as run:
        pids = wait_for_steps(run, 8)
        wait_for(lambda: is_asleep(pids[1]), "rank 1 to sleep in C")
        os.kill(pids[6], signal.SIGSTOP)
        evidence = collect_evidence(RunDir(run.dir), pids)  # one holds the GIL, one is stopped
        assert all(each.threads for each in evidence), [each.notes for each in evidence]

        seen = ask("stacks", run.dir, "--json", cwd=tmp_path)
        hang = json.loads(seen.stdout)
        assert hang["culprits"] == [1, 6], seen.stderr
        assert {row["doing"].split("\n")[-1] for row in hang["missing"]} == {
            "holds the GIL in native code (sleep)",
            "is stopped (SIGSTOP)",
        }
        listed = ask("ps", cwd=tmp_path).stdout
        assert "hang_cases.py" in listed
        assert "8 of 8" in listed
        assert "running, rank 6 stopped" in listed
        assert run.popen.poll() is None, "it goes on"

        os.kill(pids[6], signal.SIGCONT)
        os.kill(pids[1], signal.SIGKILL)
        assert run.wait() == 137
        refused = ask("stacks", run.dir, cwd=tmp_path)
        assert refused.returncode == 2
        assert "not live" in refused.stderr or "no live run" in refused.stderr


def is_asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/wchan").read_text().endswith("nanosleep")


@pytest.mark.long
def test_a_slow_rank_is_no_hang_and_is_named(tmp_path: Path) -> None:
    """Rank 2 takes 20 times as long as the others, and nobody prints a word."""
    options = ("--cpus", "4", "--preload", "--stall-timeout", STALL_S, "--grace", "1")
    program = (PROGRAMS / "slow_rank.py", "45")
    with puffrun(*options, *program, cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr
        waiting = run.report["waiting"]
        assert waiting["slowest_rank"] == 2
        assert waiting["share"] > 0.3
        assert "rank 2 was last in" in " ".join(run.stderr.split())
        assert "barrier at slow_rank.py:" in " ".join(run.stderr.split())


@pytest.mark.long
def test_healthy_programs_are_left_alone(tmp_path: Path) -> None:
    """Silent for longer than the stall limit, but not still: they compute, read, load."""

    def run_one(case: str) -> tuple[str, int, str]:
        cwd = tmp_path / case
        cwd.mkdir()
        options = ("--cpus", "2", "--stall-timeout", STALL_S, "--grace", "1")
        program = (PROGRAMS / "hang_healthy.py", case)
        with puffrun(*options, *program, cwd=cwd) as run:
            return case, run.wait(), run.stderr

    cases = ("quiet_start", "reads_files", "fork_pool", "spawn_loader", "asynchronous")
    with ThreadPoolExecutor(len(cases)) as pool:
        ended = list(pool.map(run_one, cases))
    assert [(case, code) for case, code, _ in ended] == [(case, 0) for case in cases], ended


def test_ranks_that_fall_with_a_killed_one_are_its_victims(tmp_path: Path) -> None:
    """They are asked while they record their own exceptions: those say where they were."""
    options = ("--cpus", "4", "--preload", "--grace", "1")
    with puffrun(*options, PROGRAMS / "peer_dies.py", cwd=tmp_path) as run:
        assert run.wait() == 137, run.stderr
        (stop,) = run.events("stop")
        errors = [json.loads(path.read_text()) for path in run.dir.glob("errors/*.json")]
        fallen = {error["rank"] for error in errors if error["at"] <= stop["at"]}
        assert fallen, "a peer notices at once"
        assert fallen <= set(run.report["victims"])
        assert {r["rank"] for r in run.report["ranks"] if r["state"] == "victim"} >= fallen
        rows = run.report["hang"]["waiting"]
        assert sorted(rank for row in rows for rank in row["ranks"]) == [0, 2, 3], rows
        assert all(row["op"].startswith("all_reduce #20") for row in rows), rows
        assert {row["at"] for row in rows} == {"peer_dies.py:11 in step"}


def test_ps_prints_valid_json_whatever_the_metrics_are(tmp_path: Path) -> None:
    text = "import puffrun, time\npuffrun.progress(3, loss=float('nan'), top=-float('inf'), lr=1)\n"
    program = tmp_path / "program.py"
    program.write_text(text + "print('up', flush=True)\ntime.sleep(600)\n")
    with puffrun("--cpus", "1", "--grace", "1", program, cwd=tmp_path) as run:
        pid = run.rank_pid(0)  # it has started, so it has a log
        wait_for(lambda: "up" in run.log(0), "the first line")
        lines = ask("ps", "--json", cwd=tmp_path).stdout.splitlines()
        runs = [json.loads(line, parse_constant=refuse) for line in lines]
        (ours,) = [each for each in runs if each["run_dir"] == str(run.dir)]
        assert ours["metrics"] == {"loss": None, "top": None, "lr": 1.0}
        os.kill(pid, signal.SIGKILL)
        run.wait()


def refuse(constant: str) -> None:
    raise AssertionError(f"no JSON: {constant}")
