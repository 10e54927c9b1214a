"""`puffrun build-artifacts` as it is typed: exit codes, stdout, stderr, signals."""

import hashlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from artifact_project import build, shell, started, write_toml
from harness import ask, wait_for

from puffrun.artifacts.store.artifact_store import Store
from puffrun.artifacts.store.lock import BuildLock


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").write_text("1\n")
    write_toml(tmp_path, shell("thing", "cat in > {out}/out", inputs=("in",)))
    return tmp_path


def store(root: Path) -> Store:
    return Store(root / ".puffrun" / "artifacts" / "thing")


def test_building_prints_where_it_is_and_says_why_on_stderr(root: Path):
    first = build(root)
    name, path = first.stdout.split()
    assert name == "thing"
    assert Path(path, "out").read_text() == "1\n"
    assert first.stderr.splitlines()[0] == "puffrun  artifact thing  stale: never built"
    assert first.stderr.splitlines()[1].startswith("puffrun  artifact thing  built in ")
    second = build(root, "thing")
    assert second.stdout == first.stdout
    assert second.stderr == "puffrun  artifact thing  fresh\n"
    assert (first.wait(), second.wait()) == (0, 0)


def test_check_looks_only(root: Path):
    stale = build(root, "--check")
    assert (stale.wait(), stale.stdout) == (1, "thing  stale: never built\n")
    assert not (root / ".puffrun").exists()
    build(root)
    fresh = build(root, "--check", "thing")
    assert (fresh.wait(), fresh.stdout, fresh.stderr) == (0, "thing  fresh\n", "")


def test_explain_tells_old_and_new(root: Path):
    build(root)
    (root / "in").write_text("2\n")
    explained = build(root, "--explain")
    assert explained.wait() == 0
    first, reason, *_ = explained.stdout.splitlines()
    old, new = (hashlib.sha256(text).hexdigest()[:12] for text in (b"1\n", b"2\n"))
    assert first == "thing  stale"
    assert reason == f"    in changed: sha256 {old}… → sha256 {new}…"
    (root / "in").write_text("1\n")
    (root / "in").chmod(0o755)
    bit = build(root, "--explain").stdout.splitlines()[1]
    assert bit == f"    in changed: sha256 {old}… → sha256 {old}…, executable"


def test_json_is_one_object_a_line(root: Path):
    lines = [json.loads(line) for line in build(root, "--json").stdout.splitlines()]
    assert [line["event"] for line in lines] == ["stale", "building", "built", "result"]
    assert lines[0]["reasons"] == [
        {"kind": "never-built", "subject": "", "old": None, "new": None, "text": "never built"}
    ]
    assert lines[-1]["state"] == "built"
    checked = json.loads(build(root, "--check", "--json").stdout)
    assert (checked["fresh"], checked["dir"]) == (True, lines[-1]["dir"])


def test_clean_removes_all_but_the_lock_and_not_what_a_run_uses(root: Path):
    build(root)
    assert build(root, "--clean").stdout == "thing  removed\n"
    assert build(root, "--check").wait() == 1
    assert store(root).lock_path.exists()
    build(root)
    me = json.dumps(
        {
            "run_id": "run-a",
            "attempt": "x",
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": int(Path("/proc/self/stat").read_text().split()[21]),
        }
    )
    store(root).use_path("run-a").write_text(me)
    refused = build(root, "--clean")
    assert refused.wait() == 2
    assert "is used by run run-a" in refused.stderr
    assert build(root, "--check").wait() == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("thnig",), "did you mean `thing`?"),
        (("--check", "--force"), "--check and --force exclude each other"),
        (("--explain", "--clean"), "--explain and --clean exclude each other"),
        (("--jobs", "0"), "--jobs"),
        (("--jbos", "2"), "--jbos"),
        (("-c", "nosuch.toml"), "nosuch.toml"),
    ],
)
def test_usage_errors(root: Path, args: tuple[str, ...], words: str):
    run = build(root, *args)
    assert run.wait() == 2
    assert words in run.stderr
    assert "Traceback" not in run.stderr
    assert not (root / ".puffrun").exists()


def test_a_failure_is_exit_71_with_the_compilers_words_once(root: Path):
    (root / "bad.c").write_text("Vec3 origin;\n")
    write_toml(root, shell("thing", "cc bad.c -o {out}/out", inputs=("bad.c",)))
    run = build(root)
    assert (run.wait(), run.stdout) == (71, "")
    assert run.stderr.count("unknown type name") == 1
    assert run.stderr.splitlines()[-2].startswith("error: artifact `thing` could not be built: `sh")
    assert run.stderr.splitlines()[-1] == (
        "hint: fix the source, then `puffrun build-artifacts thing`"
    )


def test_no_wait_is_exit_72(root: Path):
    store(root).create()
    lock = BuildLock(store(root).lock_path)
    assert lock.try_acquire()
    try:
        run = build(root, "--no-wait")
    finally:
        lock.release()
    assert run.wait() == 72
    assert "is being built by" in run.stderr


def test_waiting_says_for_whom_after_a_second(root: Path):
    write_toml(root, shell("thing", "while ! test -e go; do sleep 0.05; done; cp in {out}/out"))
    with started(root) as builder:
        wait_for(store(root).owner_path.exists, "the build")
        with started(root) as waiter:
            wait_for(lambda: "being built by" in waiter.stderr, "the waiting line")
            (root / "go").touch()
            assert (builder.wait(), waiter.wait()) == (0, 0)
    assert f"pid {builder.popen.pid} on " in waiter.stderr
    assert "Ctrl-C is safe" in waiter.stderr
    assert "built by somebody else" in waiter.stderr
    assert waiter.stdout == builder.stdout


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_build_and_leaves_nothing(root: Path, signum: int):
    write_toml(root, shell("thing", "touch here; sleep 3600 & sleep 3600"))
    with started(root) as run:
        wait_for((root / "here").exists, "the build")
        run.signal(signum)
        assert run.wait() == 128 + signum
        assert run.alive() == []
    assert list(store(root).objects_dir.iterdir()) == []
    lock = BuildLock(store(root).lock_path)
    assert lock.try_acquire()
    lock.release()


def test_a_signal_while_waiting_leaves_the_builder_alone(root: Path):
    write_toml(root, shell("thing", "while ! test -e go; do sleep 0.05; done; cp in {out}/out"))
    with started(root) as builder:
        wait_for(store(root).owner_path.exists, "the build")
        with started(root) as waiter:
            wait_for(lambda: "being built by" in waiter.stderr, "the waiting line")
            waiter.signal(signal.SIGINT)
            assert waiter.wait() == 130
        (root / "go").touch()
        assert builder.wait() == 0


def test_torch_is_never_imported(root: Path, tmp_path: Path):
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text(
        "import sys\nclass Block:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'torch': sys.exit('torch was imported')\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    toml = (root / "puffrun.toml").read_text()
    (root / "puffrun.toml").write_text(toml + 'probe = ["torch", "python-abi"]\n')
    run = build(root, env={"PYTHONPATH": str(blocker)})
    assert (run.wait(), "was imported" in run.stderr) == (0, False)


def test_every_command_of_the_document_works_on_its_own_example(tmp_path: Path):
    document = (Path(__file__).parents[2] / "docs" / "artifacts.md").read_text()
    toml, commands = re.findall(r"```(?:toml|sh)\n(.*?)```", document, re.DOTALL)
    (tmp_path / "puffrun.toml").write_text(toml)
    (tmp_path / "visualize.c").write_text("int main(void) { return 0; }\n")
    lines = [line.partition("#")[0].split() for line in commands.splitlines()]
    assert len(lines) > 5
    for words in lines:
        assert words[:2] == ["puffrun", "build-artifacts"]
        run = build(tmp_path, *words[2:])
        assert run.wait() == 0, (words, run.stderr)


def test_looking_at_a_fresh_artifact_imports_neither_filelock_nor_torch(root: Path):
    build(root)
    run = build(root, "--check", env={"PYTHONPROFILEIMPORTTIME": "1"})
    imported = {line.rsplit("|", 1)[-1].strip() for line in run.stderr.splitlines()}
    assert "puffrun.artifacts" in imported
    assert not {"filelock", "torch", "rich"} & imported


def shell_out(root: Path, command: str) -> "subprocess.CompletedProcess[str]":
    """Type a command line of puffrun."""
    name, *words = shlex.split(command)
    assert name == "puffrun"
    return ask(*words, cwd=root, timeout_s=90)


@pytest.mark.parametrize(
    "command",
    [
        "puffrun build-artifacts -c 'odd name.toml'",
        "puffrun train -c 'odd name.toml' --cpus 1 train.py",
        "puffrun smoke -c 'odd name.toml' --cpus 1 train.py",
    ],
)
def test_what_a_failure_says_to_type_names_the_config(tmp_path: Path, command: str):
    write_toml(tmp_path, shell("thing", "exit 3"))
    (tmp_path / "puffrun.toml").rename(tmp_path / "odd name.toml")
    (tmp_path / "train.py").write_text("")
    failed = shell_out(tmp_path, command)
    said = re.search(r"hint:.*`(puffrun build-artifacts[^`]*)`", failed.stderr)
    assert said is not None, failed.stderr
    again = shell_out(tmp_path, said[1])
    assert again.returncode == 71, again.stderr
    assert "artifact `thing` could not be built" in again.stderr


def test_a_report_says_to_type_what_names_the_config(tmp_path: Path):
    write_toml(tmp_path, shell("thing", "exit 3"))
    (tmp_path / "sub").mkdir()
    (tmp_path / "puffrun.toml").rename(tmp_path / "sub" / "own.toml")
    (tmp_path / "train.py").write_text("")
    shell_out(tmp_path, "puffrun train -c sub/own.toml --cpus 1 train.py")
    shown = shell_out(tmp_path, "puffrun report -c sub/own.toml")
    assert "again: puffrun build-artifacts -c sub/own.toml thing" in shown.stdout


def test_the_card_of_a_config_elsewhere_finds_its_report(tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "own.toml").write_text("")
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    ended = shell_out(tmp_path, "puffrun train -c sub/own.toml --cpus 1 train.py")
    said = re.search(r"report `(puffrun report[^`]*)`", ended.stderr)
    assert said is not None, ended.stderr
    assert "rank 0 exited 7" in shell_out(tmp_path, said[1]).stdout
