"""`puffrun train` from the shell, with real ranks: what reaches the program, what comes back."""

import json
import shlex
import subprocess
import sys

PROGRAM = """
import json, os, sys
if os.environ["RANK"] == "0":
    print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}))
sys.exit(int(os.environ["RANK"]) * 7)
"""
OUTER = {"PET_NNODES": "2", "WORLD_SIZE": "64", "MASTER_ADDR": "elsewhere"}


def train(directory, words, redirect="", env=None):
    argv = [sys.executable, "-m", "puffrun", "train", *words]
    exports = " ".join(f"{name}={value}" for name, value in (env or {}).items())
    return subprocess.run(
        ["sh", "-c", f"{exports} exec {shlex.join(argv)} {redirect}"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_run_from_the_shell(tmp_path):
    (tmp_path / "show.py").write_text(PROGRAM)
    words = ["--cpus", "1", "show.py", "--help", "--", "-c", "a b", ""]
    shown = train(tmp_path, words, env=OUTER)
    assert shown.returncode == 0
    seen = json.loads(shown.stdout)
    assert seen["argv"] == ["--help", "--", "-c", "a b", ""]
    assert seen["cwd"] == str(tmp_path)
    assert seen["env"]["WORLD_SIZE"] == "1"
    assert seen["env"]["MASTER_ADDR"] != "elsewhere"
    assert "PET_NNODES" not in seen["env"]
    assert seen["env"]["CUDA_VISIBLE_DEVICES"] == ""
    assert "PET_NNODES=2" in shown.stderr
    plan = json.loads((tmp_path / ".puffrun/last/plan.json").read_text())
    assert plan["again"] == f"puffrun train {shlex.join(words)}"


def test_the_exit_code_survives_closed_streams(tmp_path):
    (tmp_path / "show.py").write_text(PROGRAM)
    shown = train(tmp_path, ["--cpus", "2", "show.py"], redirect="<&- >&- 2>&-")
    assert (shown.returncode, shown.stdout, shown.stderr) == (7, "", "")
    report = json.loads((tmp_path / ".puffrun/last/report.json").read_text())
    assert (report["exit_code"], report["cause"]["rank"]) == (7, 1)
