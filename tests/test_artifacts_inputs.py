"""Globs, and hashes remembered by what `stat` says."""

import json
import os
from pathlib import Path

import pytest

from puffrun.artifacts.freshness.hashing import RACY_NS, HashCache, hash_file
from puffrun.artifacts.freshness.inputs import SourceTree, find_inputs

FILES = (
    "main.c",
    "main.h",
    "notes.txt",
    ".hidden.c",
    "lib/a.c",
    "lib/b.h",
    "lib/deep/er/c.c",
    "lib/.git/d.c",
    "we[ir]d.c",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "link.c").symlink_to("main.c")
    (tmp_path / "dangling.c").symlink_to("nowhere")
    (tmp_path / "linked").symlink_to("lib", target_is_directory=True)
    os.mkfifo(tmp_path / "pipe.c")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.c", "link.c main.c we[ir]d.c"),
        ("main.?", "main.c main.h"),
        ("main.[ch]", "main.c main.h"),
        ("main.[!c]", "main.h"),
        (".*.c", ".hidden.c"),
        ("**/*.c", "lib/a.c lib/deep/er/c.c link.c main.c we[ir]d.c"),
        ("lib/**/*.c", "lib/a.c lib/deep/er/c.c"),
        ("**/er/*", "lib/deep/er/c.c"),
        ("lib/**", "lib/a.c lib/b.h lib/deep/er/c.c"),
        ("lib", "lib/a.c lib/b.h lib/deep/er/c.c"),
        ("./lib//a.c", "lib/a.c"),
        ("*/a.c", "lib/a.c linked/a.c"),
        ("lib/../main.c", "lib/../main.c"),
        ("lib/.git/d.c", "lib/.git/d.c"),
        ("nothing.c", ""),
        ("main.c/x", ""),
        ("", ""),
    ],
)
def test_patterns(tree: Path, pattern: str, expected: str):
    found = [path for path, _ in SourceTree(str(tree)).expand(pattern)]
    assert " ".join(sorted(found)) == expected


def test_a_link_that_leads_back_up_is_not_followed(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to("..", target_is_directory=True)
    (tmp_path / "a" / "x.c").write_text("x")
    assert [path for path, _ in SourceTree(str(tmp_path)).expand("**/*.c")] == ["a/x.c"]


def test_inputs_are_sorted_hashed_and_marked_executable(tree: Path):
    (tree / "main.h").chmod(0o755)
    inputs = find_inputs(tree, ["main.*"], frozenset(), HashCache(tree / "cache.json"))
    assert list(inputs.hashes) == ["main.c", "main.h"]
    assert inputs.hashes["main.c"] == hash_file(tree / "main.c")
    assert inputs.hashes["main.h"] == hash_file(tree / "main.h") + "+x"


def test_only_literal_patterns_count_as_unmatched(tree: Path):
    cache = HashCache(tree / "cache.json")
    inputs = find_inputs(tree, ["*.cc", "gone.c", "made.c"], frozenset({"made.c"}), cache)
    assert inputs.unmatched == ("gone.c",)
    assert inputs.is_empty


def test_excluded_paths_are_no_inputs(tree: Path):
    inputs = find_inputs(tree, ["*.c"], frozenset({"main.c"}), HashCache(tree / "cache.json"))
    assert list(inputs.hashes) == ["link.c", "we[ir]d.c"]
    assert not inputs.is_empty


def _make_old(now_offset_ns: int = 10 * RACY_NS):
    import time

    return lambda: time.time_ns() + now_offset_ns


def _forbid(*_args) -> str:
    raise AssertionError("hashed again")


def test_a_hash_is_remembered_across_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x"
    path.write_text("content")
    first = HashCache(tmp_path / "cache.json", _make_old())
    digest = first.file_hash("x", str(path), path.stat())
    first.save()
    monkeypatch.setattr("puffrun.artifacts.freshness.hashing.hash_file", _forbid)
    second = HashCache(tmp_path / "cache.json")
    assert second.file_hash("x", str(path), path.stat()) == digest


def test_an_edit_of_the_same_size_with_the_old_time_stamp_is_seen(tmp_path: Path):
    path = tmp_path / "x"
    path.write_text("content")
    cache = HashCache(tmp_path / "cache.json", _make_old())
    before = path.stat()
    first = cache.file_hash("x", str(path), before)
    path.write_text("CONTENT")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert cache.file_hash("x", str(path), path.stat()) != first


def test_a_young_file_is_not_remembered(tmp_path: Path):
    """It may change once more within the same time stamp."""
    path = tmp_path / "x"
    path.write_text("content")
    stat = path.stat()
    cache = HashCache(tmp_path / "cache.json", lambda: stat.st_ctime_ns + RACY_NS - 1)
    first = cache.file_hash("x", str(path), stat)
    path.write_text("CONTENT")
    assert cache.file_hash("x", str(path), stat) != first
    cache.save()
    assert not (tmp_path / "cache.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"x": 3}', '{"x": "1 2 3"}', "\x00"])
def test_a_broken_memory_is_no_memory(tmp_path: Path, text: str):
    path = tmp_path / "x"
    path.write_text("content")
    (tmp_path / "cache.json").write_text(text)
    cache = HashCache(tmp_path / "cache.json", _make_old())
    assert cache.file_hash("x", str(path), path.stat()) == hash_file(path)
    cache.save()
    assert json.loads((tmp_path / "cache.json").read_text())["x"].endswith(hash_file(path))


def test_a_memory_that_cannot_be_written_is_no_error(tmp_path: Path):
    path = tmp_path / "x"
    path.write_text("content")
    cache = HashCache(tmp_path / "missing" / "cache.json", _make_old())
    cache.file_hash("x", str(path), path.stat())
    cache.save()
    assert not (tmp_path / "missing").exists()


def test_a_text_is_computed_once_per_signature_and_an_empty_one_always(tmp_path: Path):
    cache = HashCache(tmp_path / "cache.json")
    answers = iter(["first", "second", "", "third"])
    assert cache.text("tool", "1 ", lambda: next(answers)) == "first"
    assert cache.text("tool", "1 ", lambda: next(answers)) == "first"
    assert cache.text("tool", "2 ", lambda: next(answers)) == "second"
    assert cache.text("gpu", "1 ", lambda: next(answers)) == ""
    assert cache.text("gpu", "1 ", lambda: next(answers)) == "third"
