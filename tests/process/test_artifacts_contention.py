"""Many builders at once, and builders that are killed: one build, never an invalid artifact."""

import os
import random
import secrets
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from artifact_kills import kill_one_round, make_kill_project
from artifact_project import Project, build, shell, started, write_toml
from harness import is_gone, wait_for

from puffrun.process import find_stat

BUILDERS = 8


def start_many(root: Path, count: int, stack: ExitStack) -> list:
    return [stack.enter_context(started(root)) for _ in range(count)]


def test_many_at_once_build_once_and_get_the_same_path(tmp_path: Path):
    spec = shell("thing", "echo x >> builds; sleep 1; date +%N > {out}/out")
    write_toml(tmp_path, spec)
    with ExitStack() as stack:
        runs = start_many(tmp_path, BUILDERS, stack)
        assert [run.wait() for run in runs] == [0] * BUILDERS
    assert (tmp_path / "builds").read_text() == "x\n"
    assert len({run.stdout for run in runs}) == 1


def test_many_at_once_share_one_failure(tmp_path: Path):
    (tmp_path / "bad.c").write_text("Vec3 origin;\n")
    script = "echo x >> builds; sleep 1; cc bad.c -o {out}/out"
    write_toml(tmp_path, shell("thing", script, inputs=("bad.c",)))
    with ExitStack() as stack:
        runs = start_many(tmp_path, BUILDERS, stack)
        assert [run.wait() for run in runs] == [71] * BUILDERS
    assert (tmp_path / "builds").read_text() == "x\n"
    assert all("unknown type name" in run.stderr for run in runs)
    again = build(tmp_path)
    assert again.wait() == 71
    assert (tmp_path / "builds").read_text() == "x\nx\n"


def test_many_forcing_at_once_build_once(tmp_path: Path):
    write_toml(tmp_path, shell("thing", "echo x >> builds; sleep 1; echo x > {out}/out"))
    assert build(tmp_path).wait() == 0
    with ExitStack() as stack:
        runs = [stack.enter_context(started(tmp_path, "--force")) for _ in range(5)]
        assert [run.wait() for run in runs] == [0] * 5
    assert (tmp_path / "builds").read_text() == "x\nx\n"
    assert len({run.stdout for run in runs}) == 1


def test_overlapping_sets_do_not_block_each_other(tmp_path: Path):
    """`x` builds a then b, `y` b then a: the locks are taken one at a time."""
    toml = "".join(
        f'[artifacts.{name}]\ncmd = ["sh", "-c", "sleep 0.2; echo x > {{out}}/out"]\n'
        f'outputs = ["out"]\nneeds = {needs}\n'
        for name, needs in (("a", "[]"), ("b", "[]"), ("x", '["a", "b"]'), ("y", '["b", "a"]'))
    )
    (tmp_path / "puffrun.toml").write_text(toml)
    with started(tmp_path, "x", "--jobs", "1") as x, started(tmp_path, "y", "--jobs", "1") as y:
        assert (x.wait(), y.wait()) == (0, 0)


@pytest.mark.parametrize("mode", ["staged", "inplace"])
def test_the_lock_of_a_killed_launcher_is_free_only_when_no_writer_is_left(
    tmp_path: Path, mode: str
):
    stubborn = "trap '' TERM; echo $$ > pid.new; mv pid.new pid; while :; do echo x >> out; done"
    after = "kill -0 $(cat pid) 2> /dev/null && exit 9; echo good > out; cp out {out}/out"
    script = f"if test $(cat step) = 1; then {stubborn}; else {after}; fi"
    (tmp_path / "step").write_text("1")
    write_toml(tmp_path, shell("thing", script, inputs=("step",), mode=mode))
    with started(tmp_path) as first:
        wait_for((tmp_path / "pid").exists, "the first build")
        writer = find_stat(int((tmp_path / "pid").read_text()))
        assert writer is not None
        (tmp_path / "step").write_text("2")
        first.signal(signal.SIGKILL)
        second = build(tmp_path)
        assert second.wait() == 0, second.stderr
        assert is_gone(writer.pid, writer.started)
        assert first.alive() == []
    assert Path(second.stdout.split()[1], "out").read_text() == "good\n"


def test_a_daemon_that_keeps_the_output_open_keeps_nobody_waiting(tmp_path: Path):
    script = "setsid sleep 3600 & echo x > {out}/out"
    write_toml(tmp_path, shell("thing", script))
    with started(tmp_path) as run:
        assert run.wait() == 0
        assert run.alive() == []


def test_a_killed_guardian_is_a_failure_that_nobody_shares(tmp_path: Path):
    script = "if mkdir first; then sleep 3600; fi; echo x > {out}/out"
    write_toml(tmp_path, shell("thing", script))
    with started(tmp_path) as builder:
        wait_for((tmp_path / "first").exists, "the first build")
        with started(tmp_path) as waiter:
            wait_for(lambda: "being built by" in waiter.stderr, "the waiter")
            os.kill(builder.guardian_pid(), signal.SIGKILL)
            assert (builder.wait(), waiter.wait()) == (71, 0)
            assert builder.alive() == []
    assert "its guardian was killed" in builder.stderr


def test_kills_at_random_moments_leave_only_valid_artifacts(tmp_path: Path):
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # shown when the test fails
    project: Project = make_kill_project(tmp_path)
    for number in range(4):
        rng = random.Random(f"{seed}-{number}")  # noqa: S311 - to be replayed, not to be secret
        kill_one_round(project, rng, number)
