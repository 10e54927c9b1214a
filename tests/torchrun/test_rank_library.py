"""The in-rank library under the real puffrun and under plain torchrun."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from harness import PROGRAMS, clean_environ, is_gone, puffrun, wait_for

from puffrun.heartbeat import read_heartbeat
from puffrun.process import read_stats, send_signal
from puffrun.rundir import RunDir

PROGRAM = PROGRAMS / "rank_library.py"


def read_times(run, ranks):
    """When each rank called, when it raised, and what."""
    logs = [run.log(rank) for rank in range(ranks)]
    calls = [float(re.search(r"^calls at (.*)$", log, re.MULTILINE)[1]) for log in logs]
    raises = [float(re.search(r"^raised at (.*)$", log, re.MULTILINE)[1]) for log in logs]
    texts = {log.partition("raised at ")[2].splitlines()[1] for log in logs}
    return calls, raises, texts


def test_a_failed_build_ends_4_ranks_with_one_text(tmp_path):
    with puffrun("--cpus", "4", PROGRAM, "build", cwd=tmp_path) as run:
        code = run.wait()
        calls, raises, texts = read_times(run, 4)
        print(run.stderr)
    assert code == 74
    assert len(texts) == 1
    text = texts.pop()
    assert "run_once `fail_to_build`: rank 0 failed: OSError: no space left on device" in text
    print(f"{max(raises) - max(calls):.3f} s after the last rank's call")
    report = run.report
    assert (report["outcome"], report["cause"]["kind"]) == ("disagreed", "disagreement")
    assert report["cause"]["rank"] == 0
    assert report["victims"] == [1, 2, 3]
    assert "OSError: no space left on device" in report["cause"]["traceback"]


@pytest.mark.parametrize(
    ("what", "code", "kind", "rank", "says"),
    [
        ("leave", 75, "early-exit", 1, "barrier `end`: rank 1 is gone (exited 0)"),
        ("die", 134, "signal", 1, ""),
        ("miss", 74, "disagreement", 1, "barrier `end`: rank 1 did not come within 1"),
    ],
)
def test_what_the_launcher_makes_of_it(tmp_path, what, code, kind, rank, says):
    options = ("--cpus", "2", "--grace", "1", "--exit-timeout", "3600")
    with puffrun(*options, PROGRAM, what, cwd=tmp_path) as run:
        assert run.wait() == code, run.stderr
        assert run.report["cause"]["kind"] == kind, run.stderr
        assert run.report["cause"]["rank"] == rank
        assert says in run.log(0)
        if what == "miss":
            assert "in stay_in_save" in run.log(0)


def test_heartbeats_and_the_checkpoint_outlive_the_ranks(tmp_path):
    with puffrun("--cpus", "2", PROGRAM, "beat", tmp_path / "ckpt", cwd=tmp_path) as run:
        assert run.wait() == 74, run.stderr
        for rank in range(2):
            beat = read_heartbeat(RunDir(run.dir).heartbeat_path(rank))
            assert beat is not None
            assert (beat.rank, beat.step, beat.calls) == (rank, 49, 50)
            assert beat.metrics == {"loss": 0.02}
            assert run.report["ranks"][rank]["last_progress"] >= beat.at
        assert "last checkpoint ckpt/step-00000041" in run.stderr
        assert "rank 1 failed: ValueError: loss is NaN" in run.stderr


def start_torchrun(program, *args, ranks=2):
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--monitor-interval=0.1",
         f"--nproc-per-node={ranks}", program, *args],
        env=clean_environ(OMP_NUM_THREADS="1"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def end_tree(process):
    """Kill and reap torchrun and whatever is below it."""
    below = [s for s in read_stats().values() if s.ppid == process.pid]
    process.kill()
    for stat in below:
        send_signal(stat, signal.SIGKILL)
    process.communicate(timeout=30)
    for stat in below:
        with contextlib.suppress(ChildProcessError):  # ours to reap only if we are a subreaper
            os.waitpid(stat.pid, 0)
    wait_for(lambda: all(is_gone(s.pid, s.started) for s in below), "torchrun's ranks to end")


@pytest.mark.parametrize("options", [(), ("--preload",)])
def test_processes_below_a_rank_are_alone(tmp_path, options):
    with puffrun("--cpus", "2", *options, PROGRAM, "children", cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr + run.log(0) + run.log(1)


def run_torchrun(*argv):
    """Return torchrun's exit code and what it said."""
    process = start_torchrun(*argv)
    try:
        _, stderr = process.communicate(timeout=90)
    finally:
        end_tree(process)
    return process.returncode, stderr


def test_processes_below_a_rank_are_alone_under_torchrun():
    code, stderr = run_torchrun(PROGRAM, "children")
    assert code == 0, stderr


def test_plain_torchrun_too():
    code, stderr = run_torchrun(PROGRAM, "differ")
    assert code == 1
    text = "DisagreementError: different calls: rank 1 is at barrier `save`"
    assert stderr.count(text) == 2, stderr


def test_before_torchs_barrier_hangs_where_run_once_does_not():
    """The page shows this program first; here is the proof that it hangs."""
    process = start_torchrun(PROGRAMS / "rank_before.py")
    try:
        for line in process.stderr:
            if "OSError: no space left on device" in line:
                break
        else:
            pytest.fail("rank 0 did not fail")
        started_at = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(5)
        print(f"still there {time.monotonic() - started_at:.0f} s after the error")
    finally:
        end_tree(process)
