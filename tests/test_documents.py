"""Documents that nobody runs go stale: what they name must exist."""

import re
from pathlib import Path

import pytest

from puffrun.cli.app import COMMANDS
from puffrun.errors import ExitCode

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)#:]+)(?:#[^)]*)?\)")


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_make_targets_exist(page):
    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z]+)", text, re.MULTILINE)) <= targets
    named = set(re.findall(r"(?:`|^|\$ )puffrun ([a-z][a-z-]+)", text, re.MULTILINE))
    assert named <= set(COMMANDS)


def test_the_exit_codes_are_all_documented():
    text = read("docs/exit-codes.md")
    for code in ExitCode:
        assert re.search(rf"^\|[^|]*\b{code.value}\b", text, re.MULTILINE), code


@pytest.mark.parametrize(("page", "most"), [("ARCHITECTURE.md", 150), ("CONTRIBUTING.md", 80)])
def test_pages_stay_short(page, most):
    assert len(read(page).splitlines()) <= most
