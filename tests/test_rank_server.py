"""The part inside a rank, in real interpreters: it answers, and is not noticed."""

import importlib
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path

import pytest
from harness import wait_for

import puffrun
from puffrun.evidence.asking import ask
from puffrun.evidence.flight_records import read_journal
from puffrun.rank.server import AfterImport
from puffrun.rundir import RunDir

INJECT = Path(puffrun.__file__).parent / "rank" / "inject"
LIMIT_S = 120
QUIET = ("-W", "ignore")  # torch warns at import when numpy is absent


def start(run_dir: RunDir, program: str, **env: str) -> "subprocess.Popen[str]":
    """Start a Python process as the agent starts a rank."""
    run_dir.ranks_dir.mkdir(parents=True, exist_ok=True)
    run_dir.errors_dir.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, *QUIET, "-c", program],
        env={
            "PATH": os.environ["PATH"],
            "RANK": "0",
            "PUFFRUN_AGENT_PID": str(os.getpid()),
            "PUFFRUN_RUN_DIR": str(run_dir.path),
            "PYTHONPATH": str(INJECT),
            **env,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(run_dir: RunDir, program: str, **env: str) -> "tuple[int, str, str]":
    process = start(run_dir, program, **env)
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def test_it_answers_and_leaves_no_trace_in_the_program(tmp_path):
    """In a run directory whose path is longer than a socket's may be."""
    run_dir = RunDir(tmp_path / ("long" * 30))
    program = (
        "import sys, threading, torch\n"
        "print(threading.active_count(), len(sys.meta_path), flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = start(run_dir, program)
    try:
        assert process.stdout is not None
        count = process.stdout.readline().split()[0]
        assert count == "1", "it is no Python thread"
        assert read_journal(run_dir.journal_path(0)).answers
        assert "pg_status" in ask(run_dir.socket_path(0), "fr_trace_json", 30)
        wait_for(  # it may still be in the line that printed
            lambda: (
                'File "<string>", line 3 in <module>'
                in ask(run_dir.socket_path(0), "dump_traceback", 30)
            ),
            "the line that reads",
        )
        _, err = process.communicate("", timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, err) == (0, "")
    assert not run_dir.socket_path(0).exists(), "taken away before Python was torn down"


def test_a_fork_ends_well_and_takes_nothing_away(tmp_path):
    run_dir = RunDir(tmp_path)
    program = (
        "import os, sys, torch\n"
        "if os.fork() == 0: sys.exit(3)\n"
        "status = os.wait()[1]\n"
        f"is_there = os.path.exists({str(run_dir.socket_path(0))!r})\n"
        "print(os.waitstatus_to_exitcode(status), is_there)\n"
    )
    assert run(run_dir, program) == (0, "3 True\n", "")


def test_a_program_without_torch_is_left_alone(tmp_path):
    run_dir = RunDir(tmp_path)
    program = "import os, sys; print(len(os.listdir('/proc/self/task')), 'json' in sys.modules)"
    assert run(run_dir, program) == (0, "1 False\n", "")
    assert not run_dir.journal_path(0).exists()
    assert "not imported torch" in read_journal(run_dir.journal_path(0)).reason


def test_what_does_not_work_is_in_the_journal_not_in_the_way(tmp_path):
    run_dir = RunDir(tmp_path)
    program = "import torch; print('up')"
    run_dir.ranks_dir.mkdir()
    run_dir.socket_path(0).mkdir()  # nothing can be bound there
    code, out, err = run(run_dir, program)
    assert (code, out, err) == (0, "up\n", "")
    lines = run_dir.journal_path(0).read_text().splitlines()
    assert json.loads(lines[-1])["server"] is False
    assert not read_journal(run_dir.journal_path(0)).answers


class TestAfterImport:
    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        (tmp_path / "awaited_module.py").write_text("value = 1\n")
        monkeypatch.syspath_prepend(tmp_path)
        yield "awaited_module"
        sys.modules.pop("awaited_module", None)

    def test_acts_once_after_the_module_ran(self, module):
        seen = []
        finder = AfterImport(module, lambda found: seen.append(found.value))
        sys.meta_path.insert(0, finder)
        found = importlib.import_module(module)
        importlib.reload(found)
        assert seen == [1]
        assert finder not in sys.meta_path

    def test_other_modules_pass_by(self, module):
        finder = AfterImport(module, lambda _: None)
        assert finder.find_spec("json") is None

    def test_the_loader_is_as_it_was(self, module):
        sys.meta_path.insert(0, AfterImport(module, lambda _: None))
        found = importlib.import_module(module)
        assert isinstance(found.__spec__, ModuleSpec)
        assert isinstance(found.__spec__.loader, SourceFileLoader)
        assert "exec_module" not in vars(found.__spec__.loader)

    def test_a_module_that_is_not_there_is_not_there(self):
        finder = AfterImport("no_such_module_at_all", lambda _: None)
        sys.meta_path.insert(0, finder)
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_at_all")
        assert finder not in sys.meta_path
