"""A rank that was forked looks, runs and ends as one that was executed."""

import json
import signal
import sys
from pathlib import Path

import pytest
from agent_alone import Ended, run_ranks
from harness import PROGRAMS

PYTHON = [sys.executable, "-u"]


def in_both_modes(argv: list[str], ranks: int, tmp_path: Path) -> tuple[list[Ended], list[Ended]]:
    executed = run_ranks([*PYTHON, *argv], ranks, tmp_path / "executed", preload=False)
    forked = run_ranks([*PYTHON, *argv], ranks, tmp_path / "forked", preload=True)
    return executed, forked


def test_ends_are_the_same(tmp_path: Path) -> None:
    program = str(PROGRAMS / "endings.py")
    ways = len(ENDINGS)
    executed, forked = in_both_modes([program], ways, tmp_path)
    assert forked == executed
    assert [end.returncode for end in forked] == ENDINGS
    assert forked[26].out == "Python's buffer\nC's buffer\n"
    libraries = [end.out for end in forked[27:31]]
    assert libraries == ["the destructor\n"] * 2 + ["the exit handler\n", "the static\n"]


ENDINGS = [
    0, 0, 0, 7, 255, 3, 1, 1, 1, 1, 1, 0, 0, 0, 21, 9, -signal.SIGINT, 1, 1, 8, 0,
    -signal.SIGTERM, -signal.SIGABRT, 0, 0, 0, 1, 0, 0, 4, 0, 5, 6,
]  # fmt: skip


def load_facts(directory: Path) -> list[dict]:
    return [json.loads((directory / f"facts-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.long
@pytest.mark.parametrize("target", ["script", "module"])
def test_what_a_program_finds_is_the_same(target: str, tmp_path: Path) -> None:
    script = str(PROGRAMS / "who_am_i.py")
    argv = {"script": [script, "--lr", "3"], "module": ["-m", "who_am_i", "--lr", "3"]}[target]
    executed, forked = in_both_modes(argv, 2, tmp_path)
    assert [end.returncode for end in (*executed, *forked)] == [0, 0, 0, 0], forked
    before, after = load_facts(tmp_path / "executed"), load_facts(tmp_path / "forked")
    for rank in range(2):
        expected = json.loads(json.dumps(before[rank]["same"]).replace("/executed", "/forked"))
        assert "who_am_i" in after[rank]["own"]["command"]
        for name, value in expected.items():
            assert (name, after[rank]["same"][name]) == (name, value)
    for what in ("random", "authkey", "seed", "drawn"):
        assert after[0]["own"][what] != after[1]["own"][what], what
