"""Manifests, failures, recipes, outputs and garbage: the pieces of a build, one by one."""

import errno
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from puffrun.artifacts import release_artifacts
from puffrun.artifacts.build_failure import (
    SHOWN_LINES,
    Failure,
    find_failure,
    pick_lines,
    render_command,
    shares_failure,
    suggest_fix,
    write_failure,
)
from puffrun.artifacts.freshness.outputs import (
    Displaced,
    copy_file,
    find_output_problem,
    seal_outputs,
)
from puffrun.artifacts.recipe import decide_slots, make_recipe, share_jobs
from puffrun.artifacts.store import garbage
from puffrun.artifacts.store.artifact_store import (
    Store,
    make_attempt_id,
    open_store,
    split_attempt_id,
)
from puffrun.artifacts.store.garbage import collect_garbage, find_live_uses, write_use
from puffrun.artifacts.store.manifest import (
    Manifest,
    Output,
    commit_manifest,
    find_manifest,
    find_newest_manifest,
)
from puffrun.config import ArtifactSpec

FP = "f" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_store(tmp_path, "thing")
    store.create()
    return store


def make_manifest(attempt: str = "host-1-aaa", fingerprint: str = FP) -> Manifest:
    output = Output("out", 3, 0o644, "abc")
    return Manifest("thing", fingerprint, {"cmd": ["x"]}, attempt, (output,), 1, 2, 0.5)


# -- manifests


def test_a_manifest_comes_back_as_it_was(store: Store):
    assert find_manifest(store, FP) is None
    assert commit_manifest(store, make_manifest(), replace=False) == make_manifest()
    assert find_manifest(store, FP) == make_manifest()
    assert [p.name for p in store.manifests_dir.iterdir()] == [f"{FP}.json"]


def test_the_first_to_publish_wins(store: Store):
    first, second = make_manifest("host-1-aaa"), make_manifest("host-2-bbb")
    commit_manifest(store, first, replace=False)
    inode = store.manifest_path(FP).stat().st_ino
    assert commit_manifest(store, second, replace=False) == first
    assert store.manifest_path(FP).stat().st_ino == inode
    assert commit_manifest(store, second, replace=True) == second
    assert find_manifest(store, FP) == second


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_will_do(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
):
    def refuse(*_args):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    commit_manifest(store, make_manifest(), replace=False)
    assert find_manifest(store, FP) == make_manifest()


def test_any_other_error_is_told_and_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="No space"):
        commit_manifest(store, make_manifest(), replace=False)
    assert list(store.manifests_dir.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "null", '{"schema": 1, "outputs": 3}', '{"schema": 1, "outputs": []}'],
)
def test_a_broken_manifest_counts_as_none_and_is_replaced(store: Store, text: str):
    store.manifest_path(FP).write_text(text)
    assert find_manifest(store, FP) is None
    assert find_newest_manifest(store) is None
    assert commit_manifest(store, make_manifest(), replace=False) == make_manifest()
    assert find_manifest(store, FP) == make_manifest()


def test_a_manifest_under_another_name_or_of_another_schema_counts_as_none(store: Store):
    commit_manifest(store, make_manifest(), replace=False)
    text = store.manifest_path(FP).read_text()
    store.manifest_path("e" * 64).write_text(text)
    assert find_manifest(store, "e" * 64) is None
    store.manifest_path(FP).write_text(json.dumps({**json.loads(text), "schema": 99}))
    assert find_manifest(store, FP) is None


# -- failures


def make_failure(**fields) -> Failure:
    values = {
        "name": "thing",
        "fingerprint": FP,
        "run_id": "run-a",
        "summary": "cc exited 1",
        "detail": "`cc x.c` exited 1",
        "lines": ("x.c:1: error",),
        "log_path": "x.log",
        "hint": "fix it",
        "started_at": 100,
        "ended_at": 200,
    }
    return Failure(**{**values, **fields})


@pytest.mark.parametrize(
    ("fingerprint", "run_id", "asked_at", "shared"),
    [
        (FP, "run-b", 150, True),
        (FP, "run-b", 200, True),
        (FP, "run-b", 201, False),
        (FP, "run-a", 999, True),
        ("other", "run-a", 150, False),
    ],
)
def test_who_shares_a_failure(fingerprint: str, run_id: str, asked_at: int, *, shared: bool):
    assert shares_failure(make_failure(), fingerprint, run_id, asked_at) is shared


def test_a_failure_is_the_same_for_everybody(store: Store):
    assert find_failure(store) is None
    write_failure(store, make_failure())
    assert find_failure(store) == make_failure()
    store.failure_path.write_text('{"name": 1}')
    assert find_failure(store) is None


def test_short_logs_are_shown_whole():
    assert pick_lines(["a", "b", "", " "]) == ("a", "b")
    assert pick_lines([]) == ()


def test_the_last_lines_are_shown():
    lines = [f"line {i}" for i in range(100)]
    assert pick_lines(lines) == tuple(lines[-SHOWN_LINES:])


def test_an_error_far_above_the_end_is_shown_too():
    lines = [f"line {i}" for i in range(300)]
    lines[50] = "x.c:3:1: error: unknown type name"
    picked = pick_lines(lines)
    assert lines[50] in picked
    assert picked[-1] == "line 299"
    assert len(picked) == SHOWN_LINES
    assert any("more lines" in line for line in picked)


@pytest.mark.parametrize(
    ("returncode", "lines", "words"),
    [
        (1, (), "fix the source, then `puffrun build-artifacts thing`"),
        (137, (), "`MAX_JOBS=4 puffrun build-artifacts thing`"),
        (-9, (), "memory"),
        (1, ("c++: fatal error: Killed signal terminated program cc1plus",), "memory"),
    ],
)
def test_hints(returncode: int, lines: tuple, words: str):
    assert words in suggest_fix("puffrun build-artifacts thing", returncode, lines, "8")


def test_commands_are_shown_as_typed():
    assert render_command(["cc", "a b.c", "-o", "{out}/x"]) == "cc 'a b.c' -o {out}/x"
    assert len(render_command(["cc", "x" * 500])) == 60
    assert "\n" not in render_command(["sh", "-c", "a\nb"])


# -- recipes


def test_placeholders_are_filled_and_exported(tmp_path: Path):
    spec = ArtifactSpec(
        "thing",
        ("{python}", "x={artifact:gen}/t", "{out}/a", "${x} {} {y}"),
        ("a",),
        needs=("gen",),
    )
    needs = {"gen": Path("/store/gen")}
    recipe = make_recipe(spec, tmp_path, Path("/store/out"), needs, {"A": "1"})
    assert recipe.argv == (sys.executable, "x=/store/gen/t", "/store/out/a", "${x} {} {y}")
    assert recipe.env == {
        "A": "1",
        "PUFFRUN_OUT": "/store/out",
        "PUFFRUN_ARTIFACT_GEN": "/store/gen",
    }
    assert recipe.cwd == tmp_path


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({}, {"MAX_JOBS": "4", "MAKEFLAGS": "-j4", "NVCC_THREADS": "1"}),
        ({"MAX_JOBS": "1"}, {"MAX_JOBS": "1", "MAKEFLAGS": "-j4"}),
        ({"MAKEFLAGS": "-j9"}, {"MAKEFLAGS": "-j9"}),
        ({"MAKEFLAGS": ""}, {"MAKEFLAGS": "-j4"}),
        ({"MAKEFLAGS": " -j --jobserver-auth=3,4"}, {"MAKEFLAGS": "-j4"}),
    ],
)
def test_build_tools_are_told_their_share_where_the_user_has_not(env: dict, told: dict):
    shared = share_jobs(env, 4)
    assert {name: shared[name] for name in told} == told
    assert shared["CMAKE_BUILD_PARALLEL_LEVEL"] == "4"


@pytest.mark.parametrize(
    ("cores", "free_gib", "slots"), [(8, None, 8), (8, 64, 8), (8, 5, 2), (8, 1, 1), (0, 64, 1)]
)
def test_jobs_fit_cores_and_memory(cores: int, free_gib: int | None, slots: int):
    assert decide_slots(cores, free_gib and free_gib << 30) == slots


# -- outputs


def test_outputs_must_be_regular_full_and_inside(tmp_path: Path):
    out, outside = tmp_path / "out", tmp_path / "outside"
    out.mkdir()
    outside.mkdir()
    (outside / "x").write_text("x")
    (out / "good").write_text("x")
    (out / "empty").touch()
    (out / "dir").mkdir()
    (out / "link").symlink_to("good")
    (out / "away").symlink_to(outside, target_is_directory=True)
    os.mkfifo(out / "fifo")
    expected = {
        "good": None,
        "none": "did not write output `none`",
        "good/x": "did not write output `good/x`",
        "empty": "wrote an empty output `empty`",
        "dir": "wrote output `dir` as a directory, not as a regular file",
        "link": "wrote output `link` as a symbolic link, not as a regular file",
        "fifo": "wrote output `fifo` as a pipe, not as a regular file",
        "away/x": "wrote output `away/x` outside its directory",
    }
    assert {name: find_output_problem(out, [name]) for name in expected} == expected


def test_sealed_outputs_cannot_be_written_and_are_the_stores_own(tmp_path: Path):
    out, source = tmp_path / "out", tmp_path / "source"
    (out / "sub").mkdir(parents=True)
    source.write_text("linked")
    os.link(source, out / "linked")
    (out / "sub" / "tool").write_text("tool")
    (out / "sub" / "tool").chmod(0o755)
    (out / "other").write_text("not declared")
    sealed = seal_outputs(out, ["linked", "sub/tool"])
    assert [(o.path, o.size, o.mode) for o in sealed] == [
        ("linked", 6, 0o644),
        ("sub/tool", 4, 0o755),
    ]
    modes = {p.name: p.stat().st_mode & 0o777 for p in out.rglob("*") if p.is_file()}
    assert modes == {"linked": 0o444, "tool": 0o555, "other": 0o444}
    assert source.stat().st_mode & 0o200
    assert source.stat().st_ino != (out / "linked").stat().st_ino


def test_a_copy_is_a_new_file_each_time(tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text("new")
    target.write_text("old")
    with target.open() as old_user:
        copy_file(source, target, 0o755)
        assert old_user.read() == "old"
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o755
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source", "target"]


def test_displaced_outputs_come_back_after_a_failure_and_go_after_a_success(tmp_path: Path):
    old = tmp_path / "old"
    old.write_text("old")
    for ends_well in (False, True):
        displaced = Displaced(tmp_path, ["old", "new"])
        displaced.move_aside()
        assert not old.exists()
        old.write_text("half")
        (tmp_path / "new").write_text("half")
        if ends_well:
            displaced.discard()
        displaced.restore()
        assert old.read_text() == ("half" if ends_well else "old")
        assert (tmp_path / "new").exists() is ends_well
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new", "old"]


def test_what_a_killed_build_moved_aside_is_found_by_the_next(tmp_path: Path):
    (tmp_path / "old").write_text("old")
    Displaced(tmp_path, ["old"]).move_aside()  # and killed
    second = Displaced(tmp_path, ["old"])
    second.move_aside()
    second.restore()
    assert (tmp_path / "old").read_text() == "old"


# -- garbage


def commit_many(store: Store, count: int) -> list[str]:
    """Publish manifests with their objects and logs, the last one the newest."""
    attempts = [f"{socket.gethostname()}-0-{i:03}" for i in range(count)]
    for i, attempt in enumerate(attempts):
        store.object_dir(attempt).mkdir()
        (store.object_dir(attempt) / "out").write_text("x")
        store.log_path(attempt).write_text("log")
        fingerprint = f"{i:064}"
        commit_manifest(store, make_manifest(attempt, fingerprint), replace=False)
        for path in (store.manifest_path(fingerprint), store.log_path(attempt)):
            os.utime(path, ns=(i, i))
    return attempts


def objects(store: Store) -> list[str]:
    return sorted(path.name for path in store.objects_dir.iterdir())


def test_the_newest_are_kept_and_what_a_live_run_uses(store: Store, tmp_path: Path):
    attempts = commit_many(store, 12)
    write_use(store, "run-a", attempts[2])
    collect_garbage(store)
    assert objects(store) == [attempts[2], *attempts[-3:]]
    assert len(list(store.manifests_dir.iterdir())) == 4
    assert len(list(store.logs_dir.iterdir())) == 10
    release_artifacts(tmp_path, "run-a")
    collect_garbage(store)
    assert objects(store) == attempts[-3:]


def test_the_use_of_a_dead_run_does_not_count(store: Store):
    attempts = commit_many(store, 5)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        use = json.dumps(
            {
                "run_id": "run-a",
                "attempt": attempts[0],
                "host": socket.gethostname(),
                "pid": child.pid,
                "started": int(Path(f"/proc/{child.pid}/stat").read_text().split()[21]),
            }
        )
        store.use_path("run-a").write_text(use)
        assert [u.run_id for u in find_live_uses(store)] == ["run-a"]
        recycled = json.loads(use) | {"started": 1}
        store.use_path("run-a").write_text(json.dumps(recycled))
        assert find_live_uses(store) == ()
        store.use_path("run-a").write_text(use)
    finally:
        child.kill()
        child.communicate()
    assert find_live_uses(store) == ()
    collect_garbage(store)
    assert objects(store) == attempts[-3:]
    assert list(store.uses_dir.iterdir()) == []


def test_the_use_of_another_node_counts_for_two_weeks(store: Store):
    attempts = commit_many(store, 5)
    write_use(store, "run-a", attempts[0])
    use = json.loads(store.use_path("run-a").read_text())
    store.use_path("run-a").write_text(json.dumps({**use, "host": "elsewhere", "pid": 1}))
    assert len(find_live_uses(store)) == 1
    os.utime(store.use_path("run-a"), (0, 0))
    assert find_live_uses(store) == ()


def test_a_broken_use_does_not_count(store: Store):
    for i, text in enumerate(["", "{", "[]", '{"run_id": 1}']):
        store.use_path(f"run-{i}").write_text(text)
    assert find_live_uses(store) == ()


def test_objects_without_manifest_go_unless_somebody_still_writes_them(store: Store):
    host = socket.gethostname()
    mine, live, dead, foreign, strange = (
        make_attempt_id(),
        f"{host}-{os.getppid()}-abc",
        f"{host}-{2**22 + 1}-abc",
        "elsewhere-1-abc",
        "strange",
    )
    for name in (mine, live, dead, foreign, strange):
        store.object_dir(name).mkdir()
    locked = store.object_dir(dead) / "locked"
    locked.mkdir()
    (locked / "x").write_text("x")
    locked.chmod(0o500)
    collect_garbage(store)
    assert objects(store) == sorted([mine, live, foreign])


def test_litter_of_killed_processes_goes_when_it_is_old(store: Store):
    old, young = store.manifests_dir / ".old.tmp", store.path / ".young.owner"
    for path in (old, young):
        path.touch()
    os.utime(old, (0, 0))
    collect_garbage(store)
    assert not old.exists()
    assert young.exists()


def test_what_cannot_be_removed_is_no_error(store: Store, monkeypatch: pytest.MonkeyPatch):
    commit_many(store, 5)

    def refuse(*_args, **_options):
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(garbage, "remove_tree", lambda _path: None)
    collect_garbage(store)
    assert len(objects(store)) == 5


def test_attempts_are_named_after_host_and_process():
    attempt = make_attempt_id()
    assert split_attempt_id(attempt) is not None
    assert split_attempt_id(attempt)[1] == os.getpid()
    assert split_attempt_id("strange") is None


def test_a_group_that_may_write_the_parent_may_write_the_store(tmp_path: Path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    store = open_store(shared, "thing")
    store.create()
    store.create()
    assert all(
        path.stat().st_mode & 0o2070 == 0o2070
        for path in (store.path.parent, store.path, store.objects_dir)
    )


def test_outputs_hash_changes_with_content_and_with_the_executable_bit():
    manifest = make_manifest()
    output = manifest.outputs[0]
    other = [replace(output, sha256="x"), replace(output, mode=0o755), replace(output, path="y")]
    hashes = {replace(manifest, outputs=(o,)).outputs_hash for o in (output, *other)}
    assert len(hashes) == 4
    assert replace(manifest, attempt="other").outputs_hash == manifest.outputs_hash
