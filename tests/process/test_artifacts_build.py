"""One process builds artifacts with real commands: freshness, outputs, failures, stops."""

import errno
import os
import signal
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from artifact_project import Project, c_program, make_c_project, shell
from harness import wait_for

from puffrun.artifacts import ArtifactsFailedError, ArtifactsLockedError, StopToken
from puffrun.artifacts.artifact_events import Failed, Noted, Stale
from puffrun.artifacts.store.artifact_store import Store
from puffrun.artifacts.store.lock import BuildLock
from puffrun.errors import ArtifactError, StoppedError, UsageError
from puffrun.process import find_stat

INSTALL = (("prog", "bin/prog"),)


def built_dir(project: Project, *names: str, **options) -> Path:
    result = project.ensure(*names, **options)[-1]
    assert result.dir is not None
    return Path(result.dir)


def exit_code(path: Path) -> int:
    return subprocess.run([path], timeout=30, check=False).returncode


def lock_is_free(store: Path) -> bool:
    lock = BuildLock(Store(store).lock_path)
    free = lock.try_acquire()
    if free:
        lock.release()
    return free


# -- fresh and stale


def test_built_once_then_fresh_without_a_write(tmp_path: Path):
    project = make_c_project(tmp_path, install=INSTALL)
    assert project.reason("prog") == "never built"
    first = built_dir(project)
    assert project.kinds() == ["Stale", "Built"]
    assert exit_code(first / "prog") == exit_code(tmp_path / "bin" / "prog") == 3
    before = snapshot(tmp_path)
    assert project.check("prog")["prog"].dir == first
    assert built_dir(project) == first
    assert project.kinds() == ["Fresh"]
    assert snapshot(tmp_path) == before


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """Every file and directory with its inode and the time of its last change."""
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_ctime_ns)
        for path in (root, *root.rglob("*"))
    }


def add_header(project: Project) -> None:
    project.write("new.h", "")


def edit_with_old_time(project: Project) -> None:
    path = project.root / "prog.h"
    before = path.stat()
    path.write_text(path.read_text().replace("3", "4"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = [
    (edit_with_old_time, "prog.h changed"),
    (add_header, "new input new.h"),
    (lambda p: (p.root / "prog.h").rename(p.root / "q.h"), "new input q.h, input prog.h is gone"),
    (lambda p: (p.root / "prog.c").chmod(0o755), "prog.c changed"),
    (lambda p: p.env.update(CFLAGS="-O3"), "CFLAGS: unset → -O3"),
    (lambda p: p.env.update(CFLAGS=""), "CFLAGS: unset → empty"),
    (lambda p: (p.root / "bin" / "prog").unlink(), "bin/prog is missing"),
    (lambda p: p.write("bin/prog", "junk"), "bin/prog is not what was built"),
    (lambda p: (p.root / "bin" / "prog").chmod(0o644), "bin/prog has other permissions"),
    (lambda p: output(p).unlink(), "output prog is missing"),
    (lambda p: overwrite(output(p), b""), "output prog is not what was built"),
    (lambda p: flip_byte(output(p)), "output prog is not what was built"),
    (lambda p: next(p.store("prog").glob("manifests/*")).unlink(), "never built"),
    (lambda p: overwrite(next(p.store("prog").glob("manifests/*")), b"{"), "never built"),
]


def output(project: Project) -> Path:
    return next(project.store("prog").glob("objects/*/prog"))


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o755)
    path.write_bytes(data)


def flip_byte(path: Path) -> None:
    """Change the content, but neither the size nor the time stamp."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    overwrite(path, bytes(data))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(("change", "reason"), CHANGES, ids=[words for _, words in CHANGES])
def test_every_change_is_seen_named_and_mended(tmp_path: Path, change, reason: str):
    project = make_c_project(tmp_path, install=INSTALL)
    project.ensure()
    change(project)
    assert project.reason("prog") == reason
    if (tmp_path / "q.h").exists():
        project.write("prog.c", '#include "q.h"\nint main(void) { return VALUE; }\n')
    project.ensure()
    assert project.reason("prog") == ""
    assert exit_code(tmp_path / "bin" / "prog") == exit_code(output_dir(project) / "prog")


def output_dir(project: Project) -> Path:
    found = project.check("prog")["prog"].dir
    assert found is not None
    return found


NOT_CHANGES = [
    lambda p: os.utime(p.root / "prog.c", (1, 1)),
    lambda p: p.write("prog.c", (p.root / "prog.c").read_text()),
    lambda p: p.write("README", "not an input"),
    lambda p: p.write(".swp.c", "hidden"),
    lambda p: p.env.update(UNRELATED="1"),
    lambda p: (p.store("prog") / "cache.json").write_text("junk"),
    lambda p: (p.store("prog") / "owner.json").write_text("junk"),
    lambda p: (p.store("prog") / "failure.json").write_text("junk"),
    lambda p: (p.root / "prog.h").rename(p.root / "x") and (p.root / "x").rename(p.root / "prog.h"),
]


@pytest.mark.parametrize("change", NOT_CHANGES)
def test_what_does_not_matter_rebuilds_nothing(tmp_path: Path, change):
    project = make_c_project(tmp_path)
    project.ensure()
    change(project)
    assert project.reason("prog") == ""
    project.ensure()
    assert project.kinds() == ["Fresh"]


def test_going_back_to_an_earlier_state_builds_nothing(tmp_path: Path):
    project = make_c_project(tmp_path, install=INSTALL)
    first = built_dir(project)
    project.env["CFLAGS"] = "-O3"
    assert built_dir(project) != first
    del project.env["CFLAGS"]
    assert built_dir(project) == first
    assert project.kinds() in (["Fresh"], ["Stale", "Installed"])


def test_the_tree_may_be_moved(tmp_path: Path):
    project = make_c_project(tmp_path / "a")
    project.ensure()
    (tmp_path / "a").rename(tmp_path / "b")
    moved = replace(project, root=tmp_path / "b")
    assert moved.reason("prog") == ""
    assert exit_code(output_dir(moved) / "prog") == 3


def test_force_builds_anew_and_leaves_the_old_to_its_users(tmp_path: Path):
    project = make_c_project(tmp_path)
    first = built_dir(project)
    second = built_dir(project, force=True)
    assert second != first
    assert output_dir(project) == second
    assert not first.exists()
    third = built_dir(project, force=True, record_use=True, run_id="user")
    built_dir(project, force=True)
    assert third.exists()


# -- what must not be called built


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 3", "exited 3"),
        ("kill -9 $$", "was killed by SIGKILL"),
        ("echo done", "did not write output `out`, although it exited 0"),
        ("touch {out}/out", "wrote an empty output `out`, although it exited 0"),
        ("mkdir {out}/out", "wrote output `out` as a directory"),
        ("echo x > x; ln -s ../../../../x {out}/out", "as a symbolic link"),
    ],
)
def test_a_build_that_did_not_work_is_a_failure(tmp_path: Path, script: str, words: str):
    project = Project(tmp_path, (shell("thing", script),))
    with pytest.raises(ArtifactsFailedError) as caught:
        project.ensure()
    assert words in caught.value.message
    assert caught.value.results[0].state == "failed"
    assert project.reason("thing") == "never built"
    assert list(project.store("thing").glob("objects/*")) == []
    assert lock_is_free(project.store("thing"))


def test_a_script_that_ends_in_echo_hides_no_compiler_error(tmp_path: Path):
    """As PufferLib's build script does: its compiler fails, and it exits 0."""
    script = "cc broken.c -o {out}/out; for i in $(seq 60); do echo Built $i; done"
    project = Project(tmp_path, (shell("thing", script, inputs=("broken.c",)),))
    project.write("broken.c", "Vec3 origin;\n")
    with pytest.raises(ArtifactsFailedError):
        project.ensure()
    failed = next(event for event in project.events if isinstance(event, Failed)).failure
    assert any("error: unknown type name" in line for line in failed.lines)
    assert failed.lines[-1] == "Built 60"
    assert "Built 1\n" in Path(failed.log_path).read_text()


def test_a_program_that_is_not_there(tmp_path: Path):
    project = Project(tmp_path, (replace(c_program(inputs=()), cmd=("nosuchcc", "x"), tools=()),))
    with pytest.raises(ArtifactsFailedError, match=r"nosuchcc.*No such file"):
        project.ensure()


def test_a_tool_that_is_not_there_is_named_before_anything_runs(tmp_path: Path):
    project = make_c_project(tmp_path, tools=("cc", "nvcc-of-tomorrow"))
    with pytest.raises(ArtifactsFailedError, match="tool `nvcc-of-tomorrow` is not on PATH"):
        project.ensure()
    assert list(project.store("prog").glob("logs/*")) == []


def test_an_input_that_is_not_there_is_a_usage_error(tmp_path: Path):
    project = make_c_project(tmp_path, inputs=("porg.c",))
    with pytest.raises(UsageError, match=r"input `porg.c` does not exist") as caught:
        project.ensure()
    assert caught.value.hint == "did you mean `prog.c`?"
    (tmp_path / "empty").mkdir()
    project = make_c_project(tmp_path, inputs=("empty",))
    with pytest.raises(UsageError, match=r"input `empty` is a directory without files"):
        project.check()
    project = make_c_project(tmp_path, inputs=("*.cu", "src/**/*.cc"))
    with pytest.raises(UsageError, match=r"no file matches its inputs"):
        project.check()


def test_a_failure_is_not_remembered(tmp_path: Path):
    project = Project(tmp_path, (shell("thing", "test -e there && echo x > {out}/out"),))
    with pytest.raises(ArtifactsFailedError):
        project.ensure(run_id="first")
    project.write("there", "")
    project.ensure(run_id="second")
    assert project.kinds() == ["Stale", "Built"]
    assert not (project.store("thing") / "failure.json").exists()


def test_a_build_that_takes_too_long_is_ended(tmp_path: Path):
    project = Project(tmp_path, (shell("thing", "echo $$ > pid; sleep 3600", timeout_s=3.0),))
    with pytest.raises(ArtifactsFailedError, match=r"did not end within 3 s"):
        project.ensure()
    assert_dead(tmp_path / "pid")


def assert_dead(pid_path: Path) -> None:
    stat = find_stat(int(pid_path.read_text()))
    assert stat is None or not stat.alive


def test_inputs_that_change_once_during_the_build_are_built_again(tmp_path: Path):
    script = "cat in > {out}/out; test -e again || { touch again; echo two > in; }"
    project = Project(tmp_path, (shell("thing", script, inputs=("in",)),))
    project.write("in", "one")
    assert (built_dir(project) / "out").read_text() == "two\n"
    assert project.kinds() == ["Stale", "Retrying", "Built"]
    assert project.reason("thing") == ""


def test_inputs_that_change_in_every_build_are_a_failure(tmp_path: Path):
    script = "cat in > {out}/out; echo more >> in"
    project = Project(tmp_path, (shell("thing", script, inputs=("in",)),))
    project.write("in", "one")
    with pytest.raises(ArtifactsFailedError, match=r"inputs changed during the build.*in changed"):
        project.ensure()
    assert list(project.store("thing").glob("objects/*")) == []


def test_what_the_command_leaves_running_is_ended_before_the_outputs_count(tmp_path: Path):
    script = "(while :; do echo more >> {out}/out; done) & echo $! > pid; echo x > {out}/out"
    project = Project(tmp_path, (shell("thing", script),))
    project.ensure()
    assert_dead(tmp_path / "pid")
    assert project.reason("thing") == ""


# -- in place


def make_inplace(tmp_path: Path, script: str) -> Project:
    project = Project(tmp_path, (shell("thing", script, inputs=("in",), mode="inplace"),))
    project.write("in", "1")
    return project


def test_in_place_outputs_are_kept_in_the_store_too(tmp_path: Path):
    project = make_inplace(tmp_path, "cp in out")
    stored = built_dir(project)
    assert (stored / "out").read_text() == (tmp_path / "out").read_text() == "1"
    project.write("out", "edited")
    assert project.reason("thing") == "out is not what was built"
    project.ensure()
    assert project.kinds() == ["Stale", "Installed"]
    assert (tmp_path / "out").read_text() == "1"


def test_an_old_output_does_not_pass_for_a_new_one(tmp_path: Path):
    project = make_inplace(tmp_path, "cc -c in -o out; echo done")
    project.write("out", "from an earlier day")
    with pytest.raises(ArtifactsFailedError, match="did not write output `out`"):
        project.ensure()
    assert (tmp_path / "out").read_text() == "from an earlier day"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".puffrun", "in", "out"]


def test_make_cannot_take_an_old_output_for_up_to_date(tmp_path: Path):
    project = make_inplace(tmp_path, "make -s out")
    project.write("Makefile", "out: in\n\tcp in out\n")
    project.write("out", "half")
    os.utime(tmp_path / "in", (1, 1))
    project.ensure()
    assert (tmp_path / "out").read_text() == "1"


def test_who_runs_the_old_output_keeps_it(tmp_path: Path):
    project = make_inplace(tmp_path, "cp in out")
    project.ensure()
    with (tmp_path / "out").open() as user:
        project.write("in", "2")
        project.ensure()
        assert user.read() == "1"
    assert (tmp_path / "out").read_text() == "2"


def test_a_failed_build_leaves_the_tree_as_it_was(tmp_path: Path):
    project = make_inplace(tmp_path, "cp in out; grep -q bad in && exit 1; exit 0")
    project.ensure()
    project.write("in", "bad")
    with pytest.raises(ArtifactsFailedError):
        project.ensure()
    assert (tmp_path / "out").read_text() == "1"


def test_outputs_and_installed_copies_are_not_inputs(tmp_path: Path):
    spec = shell("thing", "cp in out", inputs=("*",), mode="inplace", install=(("out", "copy"),))
    project = Project(tmp_path, (spec,))
    project.write("in", "1")
    project.ensure()
    assert project.kinds() == ["Stale", "Built"]
    assert project.reason("thing") == ""


# -- several artifacts


def test_needs_are_built_first_exported_and_cut_off_early(tmp_path: Path):
    gen = shell("gen", "grep -v '#' in > {out}/out", inputs=("in",))
    use = shell(
        "use", "cat {artifact:gen}/out $PUFFRUN_ARTIFACT_GEN/out > {out}/out", needs=("gen",)
    )
    project = Project(tmp_path, (use, gen))
    project.write("in", "one\n")
    assert (built_dir(project, "use") / "out").read_text() == "one\none\n"
    project.write("in", "one\n# a comment\n")
    assert project.reason("use") == "gen is stale"
    project.ensure()
    assert [r.state for r in project.ensure()] == ["fresh", "fresh"]
    project.write("in", "two\n")
    states = {r.name: r.state for r in project.ensure()}
    assert states == {"gen": "built", "use": "built"}
    stale = [event for event in project.events if isinstance(event, Stale)]
    assert [str(r) for r in stale[-1].reasons] == ["gen changed"]


def test_a_comment_in_a_need_does_not_rebuild_what_needs_it(tmp_path: Path):
    gen = shell("gen", "grep -v '#' in > {out}/out", inputs=("in",))
    use = shell("use", "cp {artifact:gen}/out {out}/out", needs=("gen",))
    project = Project(tmp_path, (use, gen))
    project.write("in", "one\n")
    project.ensure()
    project.write("in", "one\n# a comment\n")
    assert {r.name: r.state for r in project.ensure()} == {"gen": "built", "use": "fresh"}


def test_independent_artifacts_are_built_side_by_side(tmp_path: Path):
    """Each waits for the other: one after the other would never end."""
    meet = "touch here-{0}; while ! test -e here-{1}; do sleep 0.02; done; echo x > {{out}}/out"
    specs = (
        shell("a", meet.format("a", "b"), timeout_s=30),
        shell("b", meet.format("b", "a"), timeout_s=30),
    )
    project = Project(tmp_path, specs)
    assert [r.state for r in project.ensure(jobs=2)] == ["built", "built"]


def test_jobs_are_shared_out(tmp_path: Path):
    spec = shell("a", "echo $MAX_JOBS $MAKEFLAGS > {out}/out")
    project = Project(tmp_path, (spec, replace(spec, name="b")))
    dirs = [Path(r.dir) for r in project.ensure(jobs=6) if r.dir]
    assert {(d / "out").read_text() for d in dirs} == {"3 -j3\n"}


def test_after_a_failure_nothing_new_is_begun(tmp_path: Path):
    specs = (shell("a", "exit 1"), shell("b", "touch ran; echo x > {out}/out", needs=("a",)))
    for jobs in (1, 4):
        with pytest.raises(ArtifactsFailedError) as caught:
            Project(tmp_path, specs).ensure(jobs=jobs)
        assert [r.name for r in caught.value.results] == ["a"]
    assert not (tmp_path / "ran").exists()


# -- stops and locks


@pytest.mark.parametrize("mode", ["staged", "inplace"])
def test_a_stop_ends_the_build_and_leaves_nothing(tmp_path: Path, mode: str):
    spec = shell("thing", "echo $$ > pid.new; mv pid.new pid; sleep 3600; echo x > out", mode=mode)
    project, stop = Project(tmp_path, (spec,)), StopToken()
    caught: list[BaseException] = []

    def run() -> None:
        try:
            project.ensure(stop=stop)
        except StoppedError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for((tmp_path / "pid").exists, "the build")
    finally:
        stop.set(signal.SIGTERM)
        thread.join(30)
    assert [error.signum for error in caught] == [signal.SIGTERM]
    assert_dead(tmp_path / "pid")
    assert list(project.store("thing").glob("objects/*")) == []
    assert not (project.store("thing") / "owner.json").exists()
    assert lock_is_free(project.store("thing"))


def test_a_second_stop_does_not_wait_for_the_stubborn(tmp_path: Path):
    script = "trap '' TERM; echo $$ > pid.new; mv pid.new pid; while :; do sleep 0.1; done"
    project, stop = Project(tmp_path, (shell("thing", script),)), StopToken()
    stop_twice = threading.Thread(
        target=lambda: (
            wait_for((tmp_path / "pid").exists, "the build"),
            stop.set(signal.SIGINT),
            stop.set(signal.SIGINT),
        )
    )
    stop_twice.start()
    try:
        with pytest.raises(StoppedError):
            project.ensure(stop=stop)
    finally:
        stop_twice.join(30)
    assert_dead(tmp_path / "pid")


def test_no_wait_names_who_builds(tmp_path: Path):
    project = Project(tmp_path, (shell("thing", "echo x > {out}/out"),))
    store = Store(project.store("thing"))
    store.create()
    lock = BuildLock(store.lock_path)
    assert lock.try_acquire()
    try:
        with pytest.raises(ArtifactsLockedError, match="is being built by somebody"):
            project.ensure(lock_wait_s=0)
        store.owner_path.write_text(
            '{"user": "alice", "pid": 4123, "host": "node7", "since": 0, "log_path": "x.log"}'
        )
        with pytest.raises(
            ArtifactsLockedError, match="by alice, pid 4123 on node7 since"
        ) as caught:
            project.ensure(lock_wait_s=0)
        assert "x.log" in str(caught.value.hint)
        assert "--no-wait" not in str(caught.value.hint)
    finally:
        lock.release()
    assert project.ensure(lock_wait_s=0)[0].state == "built"


def test_a_lock_file_that_was_removed_is_no_lock(tmp_path: Path):
    store = Store(tmp_path / "thing")
    store.create()
    first, second = BuildLock(store.lock_path), BuildLock(store.lock_path)
    assert first.try_acquire()
    assert not second.try_acquire()
    store.lock_path.unlink()
    assert second.try_acquire()
    second.release()
    first.release()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_without_locks_staged_builds_go_on_and_in_place_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
):
    def refuse(_fd: int, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    project = Project(tmp_path, (shell("thing", "echo x > {out}/out"),))
    assert project.ensure()[0].state == "built"
    assert any(isinstance(event, Noted) for event in project.events)
    inplace = Project(tmp_path, (shell("other", "echo x > out", mode="inplace"),))
    with pytest.raises(ArtifactError, match="no file locks"):
        inplace.ensure()


def test_with_locks_that_exclude_nobody_one_build_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fcntl.flock", lambda _fd, _operation: None)
    meet = "touch here-$$; while test $(ls here-* | wc -l) -lt 3; do sleep 0.02; done"
    spec = shell("thing", f"{meet}; echo $$ > {{out}}/out", timeout_s=30)
    results = []

    def run() -> None:
        results.extend(Project(tmp_path, (spec,)).ensure())

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({result.dir for result in results}) == 1
    assert len(results) == 3
    assert Project(tmp_path, (spec,)).reason("thing") == ""


# -- a store that cannot be written


def test_a_store_that_cannot_be_made_is_one_clear_error(tmp_path: Path):
    project = Project(tmp_path, (shell("thing", "echo x > {out}/out"),))
    project.write(".puffrun", "a file")
    with pytest.raises(ArtifactError) as caught:
        project.ensure()
    assert "is stale (never built) and its store cannot be written" in caught.value.message
    assert caught.value.hint is not None


def test_a_full_disk_while_publishing_is_a_failure_that_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    project = Project(tmp_path, (shell("thing", "echo x > {out}/out"),))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(ArtifactsFailedError, match="No space left on device"):
            project.ensure()
    assert list(project.store("thing").glob("objects/*")) == []
    assert list(project.store("thing").glob("manifests/*")) == []
    assert project.ensure(run_id="later")[0].state == "built"
