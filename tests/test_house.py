"""The house: no two files of one name, no import that runs back up, and a map that is true."""

import re
from collections import Counter
from pathlib import Path

import grimp
import pytest

from puffrun.package import PACKAGE_DIR

ROOT = Path(__file__).resolve().parents[1]
MAP = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_no_two_modules_share_a_file_name():
    """A command's file in `cli/` may have the name of what the command is about."""
    names = Counter(
        path.name
        for path in PACKAGE_DIR.rglob("*.py")
        if path.name != "__init__.py" and "cli" not in path.relative_to(PACKAGE_DIR).parts
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_nobody_imports_the_package_itself():
    """But for the demo, which is a program like any user's."""
    graph = grimp.build_graph("puffrun", cache_dir=None)
    assert graph.find_modules_that_directly_import("puffrun") == {"puffrun.demo.train"}


def test_every_room_is_on_the_map():
    rooms = {
        path.name if path.is_dir() else path.stem
        for path in PACKAGE_DIR.iterdir()
        if not path.name.startswith("_") and (path.is_dir() or path.suffix == ".py")
    }
    rows = re.findall(r"^\| (`[^|]+) \|", MAP, re.MULTILINE)
    named = {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert named | {"demo"} == rooms


@pytest.mark.parametrize("line", re.findall(r"^\d\. .*(?:\n   .*)*", MAP, re.MULTILINE)[:8])
def test_the_walk_of_a_failure_names_what_there_is(line):
    """A place is `room/module`, a name in the same step is written in one of its files."""
    quoted = re.findall(r"`([^`]+)`", line)
    assert quoted
    for place in (word for word in quoted if "/" in word):
        assert (PACKAGE_DIR / f"{place}.py").is_file(), place
    sources = "\n".join(path.read_text("utf-8") for path in PACKAGE_DIR.rglob("*.py"))
    for word in (word for word in quoted if "/" not in word):
        for name in re.findall(r"\w+", word):
            assert re.search(rf"\b{name}\b", sources), name


def test_the_layers_are_the_ones_that_are_enforced():
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    first = re.findall(r"^layers = \[\n(.*?)^\]", pyproject, re.DOTALL | re.MULTILINE)[0]
    assert "\n".join(re.findall(r'"([^"]+)"', first)) in MAP
