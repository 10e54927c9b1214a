"""Why an artifact is stale, in words."""

import pytest

from puffrun.artifacts.freshness.reasons import StaleReason, compare_parts, render_reasons

PARTS = {
    "schema": 1,
    "machine": "x86_64",
    "cmd": ["cc", "-O2", "a.c"],
    "mode": "staged",
    "outputs": ["a"],
    "env": {"CFLAGS": "-g", "CC": None},
    "inputs": {"a.c": "1", "a.h": "2"},
    "tools": {"cc": "gcc 12.2\nCopyright\ngcc-12"},
    "probes": {"torch": "version=2.13.0"},
    "needs": {"gen": "hash"},
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"cmd": ["cc", "-O3", "a.c"]}, "command: -O2 → -O3"),
        ({"cmd": ["cc", "a.c"]}, "command: cc -O2 a.c → cc a.c"),
        ({"cmd": ["cc", "-O2", "a b.c"]}, "command: a.c → a b.c"),
        ({"env": {"CFLAGS": "-O3", "CC": None}}, "CFLAGS: -g → -O3"),
        ({"env": {"CFLAGS": None, "CC": None}}, "CFLAGS: -g → unset"),
        ({"env": {"CFLAGS": "-g", "CC": ""}}, "CC: unset → empty"),
        ({"inputs": {"a.c": "9", "a.h": "2"}}, "a.c changed"),
        ({"inputs": {"a.c": "1", "a.h": "2+x"}}, "a.h changed"),
        ({"inputs": {"a.c": "1"}}, "input a.h is gone"),
        ({"inputs": {"a.c": "1", "a.h": "2", "b.c": "3"}}, "new input b.c"),
        ({"tools": {"cc": "gcc 13.1\nCopyright\ngcc-13"}}, "cc changed: gcc 12.2 → gcc 13.1"),
        ({"tools": {"cc": "gcc 12.2\nCopyright\nclang"}}, "cc changed: gcc-12 → clang"),
        ({"tools": {"cc": None}}, "cc changed: gcc 12.2 → not found"),
        (
            {"probes": {"torch": "version=2.14.0"}},
            "torch changed: version=2.13.0 → version=2.14.0",
        ),
        ({"needs": {"gen": "other"}}, "gen changed"),
        ({"needs": {"gen": None}}, "gen is stale"),
        ({"needs": {}}, "gen is needed no more"),
        ({"needs": {"gen": "hash", "new": "x"}}, "new is needed now"),
        ({"outputs": ["a", "b"]}, "outputs: a → a b"),
        ({"mode": "inplace"}, "mode: staged → inplace"),
        ({"machine": "aarch64"}, "machine: x86_64 → aarch64"),
    ],
)
def test_each_part_is_named_with_old_and_new(change: dict, words: str):
    assert render_reasons(compare_parts(PARTS, PARTS | change)) == words


def test_parts_of_another_version_of_puffrun_are_compared_as_far_as_they_go():
    assert compare_parts({}, PARTS)


def test_the_most_telling_comes_first_and_the_rest_is_counted():
    old = PARTS | {"inputs": {f"{i}.c": "old" for i in range(9)}}
    new = PARTS | {"inputs": {f"{i}.c": "new" for i in range(9)}, "cmd": ["cc", "-O3", "a.c"]}
    words = render_reasons(compare_parts(old, new))
    assert words == "command: -O2 → -O3, 0.c changed, 1.c changed, and 7 more"


def test_long_values_are_cut():
    reason = StaleReason("env", "CFLAGS", "x" * 500, "y")
    assert len(str(reason)) < 100
