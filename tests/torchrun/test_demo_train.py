"""The embedded program under a real torchrun: it learns, repeats itself, resumes, ends cleanly."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo_gif import read_gif
from demo_parts import Parts, build_parts, demo_environ, find_children, run_demo, start_demo

from puffrun import latest_checkpoint

MODULE = "puffrun.demo.train"
SHORT = ("--envs", 64, "--eval-episodes", 16, "--roads", 1, "--checkpoint-every", 1)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return build_parts(tmp_path_factory.mktemp("demo"))


def weights_hash(stdout: str) -> str:
    found = re.search(r"sha256 (\w{16})", stdout)
    assert found, stdout
    return found[1]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_it_learns_to_drive_on_two_ranks(parts, tmp_path):
    done = run_demo(parts, tmp_path, "--updates", 70, "--require-goal-rate", 80)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    curve = [float(rate) for rate in re.findall(r"update .* goal +([\d.]+) %", done.stdout)]
    assert len(curve) == 70
    assert max(curve[:3]) < 20
    assert min(curve[-5:]) > 80
    assert (tmp_path / "demo-out" / "drive.bin").is_file()
    assert len(read_gif((tmp_path / "demo-out" / "drive.gif").read_bytes()).frames) > 100


@pytest.mark.long
def test_same_seed_same_weights_and_resume_goes_on(parts, tmp_path):
    hashes = []
    for name in ("a", "b"):
        done = run_demo(parts, tmp_path, *SHORT, "--updates", 3, "--out", name)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"checkpoint {name}/checkpoints/step-00000003" in done.stdout.splitlines()
        hashes.append(weights_hash(done.stdout))
    assert hashes[0] == hashes[1]
    (tmp_path / "b" / "checkpoints" / "step-00000009").mkdir()  # not a whole one
    done = run_demo(parts, tmp_path, *SHORT, "--updates", 5, "--out", "b", "--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"update +(\d+)/5", done.stdout) == ["4", "5"]
    assert weights_hash(done.stdout) != hashes[0]


@pytest.mark.long
def test_a_killed_rank_does_no_harm_to_checkpoints(parts, tmp_path):
    with start_demo(parts, tmp_path, *SHORT, "--updates", 100_000) as popen:
        assert popen.stdout is not None
        saved = 0
        for line in popen.stdout:
            saved += line.startswith("checkpoint ")
            if saved == 3:
                os.kill(max(find_children(popen.pid)), signal.SIGKILL)
                break
        popen.communicate(timeout=60)
    assert popen.returncode != 0
    newest = latest_checkpoint(tmp_path / "demo-out" / "checkpoints", verify=True)
    assert newest is not None
    assert int(newest.name.removeprefix("step-")) >= 3


def run_alone(parts: Parts, cwd: Path, *args: str, **environ: str):
    command = [sys.executable, *args]
    environ = demo_environ(parts, PYTHONWARNINGS="default", **environ)
    return subprocess.run(
        command, check=False, cwd=cwd, env=environ, capture_output=True, text=True, timeout=60
    )


THREADS_AFTERWARDS = """
from pathlib import Path
from puffrun.demo.train import main
code = main()
print("threads", *(path.read_text() for path in Path("/proc/self/task").glob("*/comm")))
raise SystemExit(code)
"""


def test_one_process_without_a_launcher_is_enough(parts, tmp_path):
    """And no gloo thread outlives the group: one that does may abort Python's shutdown."""
    environ = {"PUFFRUN_SMOKE": "1", "PUFFRUN_MAX_STEPS": "1"}
    done = run_alone(parts, tmp_path, "-c", THREADS_AFTERWARDS, **environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"update +(\d+)/(\d+)", done.stdout) == [("1", "1")]
    assert (tmp_path / "demo-out" / "smoke" / "drive.gif").is_file()
    assert "threads" in done.stdout
    assert "gloo" not in done.stdout


def test_mistakes_are_one_line(parts, tmp_path):
    done = run_alone(
        parts, tmp_path, "-m", MODULE, PUFFRUN_SMOKE="1", PUFFRUN_ARTIFACT_DRIVE_ENV=""
    )
    assert done.returncode == 1
    assert done.stderr == (
        "libdrive.so is not built: start this program with `puffrun train -c demo`\n"
    )
    done = run_alone(parts, tmp_path, "-m", MODULE, "--resume", "nothing.pt")
    assert done.returncode == 2
    assert done.stderr.endswith("error: --resume: there is no checkpoint nothing.pt\n")
    done = run_alone(parts, tmp_path, "-m", MODULE, "--envs", "0")
    assert done.returncode == 2
    assert done.stderr.endswith("error: argument --envs: 0 is less than 1\n")
