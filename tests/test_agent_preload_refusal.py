"""Why a program is not preloaded, each reason in a process of its own; and that puffrun says it."""

import subprocess
import sys
from pathlib import Path

import pytest
from harness import clean_environ, puffrun

FIND = """
import sys
sys.path.pop(0)
{before}
from puffrun.agent.preload_refusal import find_refusal
print(find_refusal({argv!r}), end="")
"""
START_THREAD = """
import threading
threading.Thread(target=threading.Event().wait, args=(60,), name="poll", daemon=True).start()
"""


def find(argv: list[str], cwd: Path, before: str = "", **env: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", FIND.format(argv=argv, before=before)],
        cwd=cwd,
        env=clean_environ(**env),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    (tmp_path / "train.py").write_text("")
    return [sys.executable, "-u", str(tmp_path / "train.py")]


def test_nothing_speaks_against_it(script: list[str], tmp_path: Path) -> None:
    assert find(script, tmp_path) == "None"


def test_another_python(script: list[str], tmp_path: Path) -> None:
    assert find(["/usr/bin/other", *script[1:]], tmp_path).startswith(
        f"the ranks run /usr/bin/other, puffrun runs {sys.executable}"
    )


def test_a_compiled_program(script: list[str], tmp_path: Path) -> None:
    assert find([*script[:2], "train.pyc"], tmp_path) == "the program is compiled"


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
def test_startup_code_of_the_user(name: str, script: list[str], tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / f"{name}.py").write_text("")
    before = f"sys.path.insert(0, {str(site)!r}); import {name}"
    assert find(script, tmp_path, before) == f"{site}/{name}.py runs at the start of each rank"


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (START_THREAD, "a thread runs already (poll)"),
        ("sys.settrace(lambda *_: None)", "a debugger, tracer or profiler is active"),
        ("sys.setprofile(lambda *_: None)", "a debugger, tracer or profiler is active"),
    ],
)
def test_what_does_not_survive_a_fork(
    before: str, reason: str, script: list[str], tmp_path: Path
) -> None:
    assert find(script, tmp_path, before) == reason


def test_a_file_that_hides_a_module(script: list[str], tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("")
    before = "import random"
    hides = f"{tmp_path}/random.py hides Python's own or an installed module `random`"
    assert find(script, tmp_path, before) == hides
    assert find(script, tmp_path) == "None", "it is not loaded yet, so it hides nothing"
    assert find([*script[:2], "-m", "train"], tmp_path, before) == hides


def test_what_hides_nothing(script: list[str], tmp_path: Path) -> None:
    (tmp_path / "random").mkdir()  # without __init__.py
    (tmp_path / "sys.py").write_text("")  # built in: never looked for
    (tmp_path / "logging.txt").write_text("")
    before = f"import random, logging; sys.path.insert(0, {str(tmp_path)!r}); import train"
    assert find(script, tmp_path, before) == "None"


def test_puffrun_says_it_and_goes_on(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "random.py").write_text("HERE = True\n")
    program = job / "train.py"
    program.write_text("import random; print('mine', random.HERE)\n")
    with puffrun("--cpus", "1", program, cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr
        assert f"not preloaded, each rank imports torch by itself: {job}/random.py" in run.stderr
        assert run.stdout == "mine True\n"
        assert run.events("agent-ready")[0]["zygote"] is None


def test_a_preloaded_run_says_nothing(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("print('hello')\n")
    with puffrun("--cpus", "1", program, cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr
        assert "preload" not in run.stderr
        assert run.stdout == "hello\n"
        assert run.events("agent-ready")[0]["zygote"] is not None
