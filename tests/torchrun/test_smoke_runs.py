"""`puffrun smoke` as CI runs it: each fault is red with its annotation, and nothing is left."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import uuid
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import MARK, PROGRAMS, Run, clean_environ, end

import puffrun

PROGRAM = PROGRAMS / "train_or_not.py"
ROOT = Path(puffrun.__file__).parents[2]


@contextmanager
def smoke(*args: str | Path, cwd: Path, env: dict | None = None) -> Iterator[Run]:
    """Start `puffrun smoke ARGS`; whatever happens, nothing of it is left."""
    mark = f"mark-{uuid.uuid4().hex}"
    out, err = cwd / f"{mark}.out", cwd / f"{mark}.err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        popen = subprocess.Popen(
            [sys.executable, "-m", "puffrun", "smoke", *map(str, args)],
            cwd=cwd,
            env=clean_environ(**{MARK: mark}, **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=err_file,
            start_new_session=True,
        )
    run = Run(popen, mark, cwd / ".puffrun" / "last", cwd, out, err)
    try:
        yield run
    finally:
        end(run)


def on_github(cwd: Path) -> dict[str, str]:
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(cwd),
        "GITHUB_STEP_SUMMARY": str(cwd / "summary.md"),
    }


def annotations(run: Run) -> list[str]:
    return [line for line in run.stderr.splitlines() if line.startswith("::error ")]


# way, options, exit code, what the annotation has
FAULTS = [
    ("raises", (), 1, "rank 1 failed%3A ValueError%3A expected 64 observations%2C got 63"),
    ("hangs", ("--stall-timeout", "3"), 75, "title=hang%3A no rank moved for "),
    ("disagrees", (), 74, "title=the ranks disagree"),
    ("leaves", (), 1, "title=leftover%3A sleep (pid "),
    ("idles", (), 1, "title=no progress%3A every rank exited 0"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0])
def test_a_fault_is_red_with_its_annotation(fault, tmp_path):
    way, options, code, words = fault
    program = shutil.copy(PROGRAM, tmp_path)
    with smoke(*options, program, way, cwd=tmp_path, env=on_github(tmp_path)) as run:
        assert run.wait() == code, run.stderr
        assert words in "\n".join(annotations(run)), run.stderr
        assert "\x1b" not in run.stderr
        assert run.alive() == []
    assert "🔴 red" in (tmp_path / "summary.md").read_text()
    if way in ("raises", "hangs"):
        assert "::error file=train_or_not.py,line=" in run.stderr


def test_a_build_that_fails_is_red_at_the_line_of_the_source(tmp_path):
    (tmp_path / "bad.c").write_text("int x;\nVec3 origin;\n")
    (tmp_path / "puffrun.toml").write_text(
        '[artifacts.thing]\ncmd = ["cc", "bad.c", "-o", "{out}/thing"]\n'
        'inputs = ["bad.c"]\noutputs = ["thing"]\n'
    )
    with smoke(PROGRAM, "good", cwd=tmp_path, env=on_github(tmp_path)) as run:
        assert run.wait() == 71
        (line,) = annotations(run)
    assert line.startswith("::error file=bad.c,line=2,title=artifact `thing` could not be built::")
    assert "unknown type name" in line


def test_a_build_that_outlasts_the_limit_is_ended(tmp_path):
    (tmp_path / "puffrun.toml").write_text(
        '[artifacts.slow]\ncmd = ["sleep", "3600"]\noutputs = ["thing"]\n'
    )
    with smoke("--timeout", "1", PROGRAM, "good", cwd=tmp_path) as run:
        assert run.wait() == 124
        assert "1 s ran out before there was any rank" in run.stderr
        assert run.alive() == []


def test_a_good_run_is_green_in_every_form(tmp_path):
    args = ("--json", "--junit", "out/junit.xml", "--steps", "7", PROGRAM, "good")
    with smoke(*args, cwd=tmp_path, env=on_github(tmp_path)) as run:
        assert run.wait() == 0, run.stderr
    verdict = json.loads(run.stdout)  # nothing but the verdict: the program's output is in the logs
    assert (verdict["verdict"], verdict["exit_code"]) == ("green", 0)
    assert {check["state"] for check in verdict["checks"]} == {"green"}
    assert "2 of 2 ranks made progress, to step 6" in run.stdout
    assert run.log(0) == run.log(1) == "trained 7 steps\n"
    suite = ET.parse(tmp_path / "out/junit.xml").getroot()  # noqa: S314 - written just now
    assert (suite.get("tests"), suite.get("failures")) == ("6", "0")
    assert annotations(run) == []
    assert "🟢 green" in (tmp_path / "summary.md").read_text()


def test_what_is_harmless_can_be_said(tmp_path):
    with smoke("--allow", "loss nan$", PROGRAM, "complains", cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """puffrun's own wheel, built from this tree."""
    out_dir = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out_dir), "."],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (path,) = out_dir.glob("*.whl")
    return path


def gate(wheel: Path, cwd: Path, *options: str, env: dict | None = None):
    site = sysconfig.get_path("purelib")
    relative = os.path.relpath(wheel, cwd)
    args = ("--wheel", relative, "--extra-site", site, "--steps", "1", *options)
    return smoke(*args, cwd=cwd, env={"CUDA_VISIBLE_DEVICES": "", **(env or {})})


def without(wheel: Path, out_dir: Path, gone: str, *, record: bool) -> Path:
    """The wheel without one file; with `record` RECORD does not list it either."""
    out_dir.mkdir(exist_ok=True)
    path = out_dir / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith("RECORD") and record:
                lines = [
                    line for line in data.splitlines(keepends=True) if gone.encode() not in line
                ]
                data = b"".join(lines)
            if name != gone:
                new.writestr(name, data)
    return path


@pytest.mark.long
def test_the_gate_is_green_on_our_own_wheel(wheel, tmp_path):
    env = {"PYTHONPATH": str(ROOT / "src")} | on_github(tmp_path)  # leads back to the checkout
    with gate(wheel, tmp_path, env=env) as run:
        assert run.wait(150) == 0, run.stderr
        assert run.alive() == []
    (where,) = [line for line in run.stderr.splitlines() if "import puffrun  from" in line]
    assert "/venv/lib/" in where
    assert str(ROOT / "src") not in run.stderr
    assert "smoke run on cpu" in run.stderr
    assert "smoke run on gpu" not in run.stderr
    assert "| cpu training | ✅ |" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize(
    ("gone", "record", "words"),
    [
        (
            "puffrun/watch/run_verdict.py",
            False,
            "`puffrun/watch/run_verdict.py` is missing from the wheel",
        ),
        ("puffrun/watch/run_verdict.py", True, "module `puffrun.watch.run_verdict` is missing"),
        ("puffrun/cli/report.py", True, "module `puffrun.cli.report` is missing"),  # a text only
        ("puffrun/library/checkpoint.py", True, "module `puffrun.library.checkpoint` is missing"),
    ],
)
def test_a_module_that_is_gone_is_red_and_named(gone, record, words, wheel, tmp_path):
    bad = without(wheel, tmp_path / "dist", gone, record=record)
    with gate(bad, tmp_path, env=on_github(tmp_path)) as run:
        assert run.wait() == 1
        assert words in run.stderr
        assert words in "\n".join(annotations(run))
        assert run.alive() == []


@pytest.mark.long
def test_a_file_that_no_import_names_is_found_by_the_run(wheel, tmp_path):
    """The C source of the demo: its artifact cannot be built."""
    bad = without(wheel, tmp_path / "dist", "puffrun/demo/drive_env.c", record=True)
    with gate(bad, tmp_path) as run:
        assert run.wait(150) != 0
        assert "drive_env.c" in run.stderr
        assert "everything is in " in run.stderr
    kept = run.stderr.split("everything is in ")[1].split()[0]
    shutil.rmtree(kept)
