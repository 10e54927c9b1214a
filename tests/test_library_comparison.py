"""What is wrong with ranks' descriptions, as tables: no process, no torch."""

from itertools import pairwise

import pytest

from puffrun.library.agreement.meeting_verdict import Absence, Arrival, RankError, conclude
from puffrun.library.preflight.comparison import compare, render
from puffrun.library.preflight.description import Description, ParamFacts
from puffrun.library.preflight.parameter_order import find_cycle
from puffrun.library.preflight.preflight import decide_briefs, decide_descriptions


@pytest.mark.parametrize(
    ("orders", "has_cycle"),
    [
        (["abc", "abc"], False),
        (["abc", "acb"], True),
        (["ab", "abc", "c"], False),
        (["ab", "cab", "c"], False),  # absolute positions differ
        (["ab", "bac", "c"], True),
        (["xy", "yz", "zx"], True),  # no two ranks disagree on a pair
        (["ab", "cd"], False),  # pipeline stages
        (["ab", "bc", "cd", "da"], True),
        (["", "a"], False),
    ],
)
def test_an_order_is_right_iff_the_union_has_no_cycle(orders, has_cycle):
    cycle = find_cycle(dict(enumerate(orders)))
    assert (cycle is not None) == has_cycle
    if cycle is not None:
        edges = {pair for order in orders for pair in pairwise(order)}
        assert all(pair in edges for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True))


def test_a_large_world_is_compared_in_time():
    orders = {rank: [f"layers.{i}.weight" for i in range(2400)] for rank in range(64)}
    assert find_cycle(orders) is None  # or the suite's own limit ends it


def param(name, **facts):
    return ParamFacts(**{
        "name": name, "shape": (4, 4), "dtype": "float32", "requires_grad": True, "group": 0,
        "sum": "11", **facts,
    })  # fmt: skip


def describe(*params, lr=0.1, **fields):
    facts = [param(p) if isinstance(p, str) else p for p in params]
    return Description(
        params=tuple(facts),
        order=tuple(p.name for p in facts if p.group is not None),
        groups=({"lr": lr},),
        **fields,
    )


def said(*descriptions):
    ranks = dict(enumerate(descriptions))
    findings = compare(ranks)
    return render(findings, ranks) if findings else ""


GOOD = describe("a", "b")
# ruff: noqa: E501  # tables
REFUSED = {
    "order": ((GOOD, describe("b", "a"), GOOD, GOOD),
              "rank 1 differs from ranks 0, 2, 3\n",
              "order      `b` before `a` on rank 1, after it on ranks 0, 2, 3 (optimizer)"),
    "order of two": ((GOOD, describe("b", "a")), "rank 1 differs from rank 0\n",
                     "`b` before `a` on rank 1, after it on rank 0"),
    "dtype": ((GOOD, describe("a", param("b", dtype="float64")), GOOD),
              "rank 1 differs from ranks 0, 2\n",
              "dtype      `b` is float64 on rank 1, float32 on ranks 0, 2"),
    "shape": ((GOOD, GOOD, describe("a", param("b", shape=(4, 8)))), "rank 2 differs",
              "shape      `b` is [4, 8] on rank 2, [4, 4] on ranks 0, 1"),
    "requires_grad": ((GOOD, describe("a", param("b", requires_grad=False))), "rank 1 differs",
                      "`b` is False on rank 1, True on rank 0"),
    "group": ((GOOD, describe("a", param("b", group=None))), "rank 1 differs",
              "`b` is absent on rank 1, 0 on rank 0"),
    "lr": ((GOOD, GOOD, describe("a", "b", lr=0.2)), "rank 2 differs",
           "lr         0.2 on rank 2, 0.1 on ranks 0, 1 (optimizer group 0)"),
    "values": ((GOOD, describe("a", param("b", sum="12")), GOOD), "rank 1 differs",
               "values     parameter `b` on rank 1 not as on ranks 0, 2"),
    "tied": ((describe(param("a", aliases=("head",))), describe("a")), "rank 1 differs",
             "`a` is none on rank 1, [head] on rank 0"),
    "missing": ((GOOD, describe("a"), GOOD), "rank 1 differs",
                "missing    `b` on ranks 0, 2, not on rank 1"),
    "nameless": ((describe(nameless=("number 0 of group 0, [4, 4]",)),) * 2,
                 "the ranks cannot train together\n",
                 "names      no name for parameter number 0 of group 0, [4, 4] of the optimizer on ranks 0, 1"),
    "duplicates": ((GOOD, describe("a", "b", duplicates=("a",)), GOOD), "rank 1 differs",
                   "two parameters are called `a` on rank 1"),
    "version": ((describe("a", world={"torch": "2.13.0"}), describe("a", world={"torch": "2.12.1"})),
                "rank 1 differs", "torch      2.12.1 on rank 1, 2.13.0 on rank 0"),
    "same": ((describe("a", same={"batch size": 64}), describe("a", same={"batch size": 32})),
             "rank 1 differs", "batch size 32 on rank 1, 64 on rank 0"),
    "differ": ((describe("a", differ={"seed": 7}), describe("a", differ={"seed": 7})),
               "the ranks cannot train together", "seed       7 on all of ranks 0, 1"),
    "mesh": ((describe(param("a", scope=(0, 1))), describe("c"), describe("c")),
             "rank 1 differs", "`a` is on rank 0, not on rank 1 of its mesh"),
    "placements": ((describe(param("a", scope=(0, 1), placements="[Shard(dim=0)]")),
                    describe(param("a", scope=(0, 1), placements="[Replicate()]"))),
                   "rank 1 differs", "`a` is [Replicate()] on rank 1, [Shard(dim=0)] on rank 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    descriptions, head, line = REFUSED[name]
    text = said(*descriptions)
    assert text.startswith(head), text
    assert line in text, text
    assert "nothing was changed" in text


ACCEPTED = {
    "equal": (GOOD, GOOD, GOOD),
    "pipeline stages": (describe("a", "b"), describe("c", "d", lr=0.5)),
    "overlapping meshes": (
        describe(param("a", scope=(0, 1)), param("b", scope=(0, 1))),
        describe(param("c", scope=(1, 2)), param("a", scope=(0, 1)), param("b", scope=(0, 1))),
        describe(param("c", scope=(1, 2))),
    ),
    "tied everywhere": (describe(param("a", aliases=("head",))),) * 2,
    "other parts of a sharded tensor": (
        describe(param("a", scope=(0, 1), shard="0", sum="1")),
        describe(param("a", scope=(0, 1), shard="1", sum="2")),
    ),
    "the same name in two stages": (
        describe(param("w", scope=(0, 1), shape=(4,))), describe(param("w", scope=(0, 1), shape=(4,))),
        describe(param("w", scope=(2, 3), shape=(8,))), describe(param("w", scope=(2, 3), shape=(8,))),
    ),
    "seeds that differ": (describe("a", differ={"seed": 1}), describe("a", differ={"seed": 2})),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    assert said(*ACCEPTED[name]) == ""


def test_a_circle_of_three_ranks_names_its_steps():
    def on(*names):
        meshes = {"x": (0, 2), "y": (0, 1), "z": (1, 2)}
        return describe(*(param(name, scope=meshes[name]) for name in names))

    text = said(on("x", "y"), on("y", "z"), on("z", "x"))
    for step in (
        "`x` before `y` on rank 0",
        "`y` before `z` on rank 1",
        "`z` before `x` on rank 2",
    ):
        assert step in text


def test_environment_differences_are_named_without_their_values():
    first, second = (
        describe("a", env={"NCCL_DEBUG": "INFO"}),
        describe("a", env={"NCCL_DEBUG": "x"}),
    )
    assert decide_descriptions({0: first, 1: second}) == [
        "not the same on all ranks: NCCL_DEBUG (environment)"
    ]


def test_ranks_without_a_common_name_are_noted_as_stages():
    stages = {0: describe("a"), 1: describe("a"), 2: describe("b")}
    assert decide_descriptions(stages) == [
        "no parameter name in common, so taken for pipeline stages: rank 2 | ranks 0, 1"
    ]
    told = {0: describe(param("a", scope=(0,))), 1: describe(param("b", scope=(1,)))}
    assert decide_descriptions(told) == [], "`group=` has said it"
    assert decide_descriptions({0: describe("a"), 1: describe()}) == []


def test_a_rank_that_came_twice_does_not_count_for_two():
    arrivals = [Arrival(0, "barrier `a`", f"train.py:{line} in f") for line in (3, 9)]
    text = conclude("barrier `a`", arrivals, 2).text
    assert text is not None
    assert text.startswith("barrier `a`: more than one process came as rank 0")
    assert "rank 0 at train.py:3 in f and at train.py:9 in f" in text


def test_equal_hashes_end_it_and_others_are_published_once():
    brief = {"all": "h", "structure": "s", "sums": {"None ": 1}, "wrong": False, "differ": {}}
    assert decide_briefs({0: brief, 1: brief}) is None
    assert decide_briefs({0: {**brief, "wrong": True}, 1: {**brief, "wrong": True}}) == {"h": 0}
    other = {**brief, "all": "g", "sums": {"None ": 2}}
    assert decide_briefs({0: brief, 1: brief, 2: other}) == {"h": 0, "g": 2}


def arrive(rank, topic="barrier `x`", **fields):
    return Arrival(rank, topic, f"train.py:{rank} in main", **fields)


def test_a_verdict_survives_its_journey():
    error = RankError(1, "ValueError", "böse\n\x00", "a.py:1 in f", "trace")
    assert Arrival.from_json(arrive(1, error=error).to_json()) == arrive(1, error=error)


@pytest.mark.parametrize(
    ("arrivals", "absence", "text"),
    [
        ([arrive(0)], Absence(waited_s=30), "barrier `x`: rank 1 did not come within 30 s\n"),
        ([arrive(0)], Absence(gone={1: "exited 0"}),
         "barrier `x`: rank 1 is gone (exited 0) and will not come\n  rank 0 waits at train.py:0"),
        ([arrive(0)], Absence(places={1: "data.py:9 in read"}), "  rank 1 is at data.py:9 in read"),
        ([arrive(0)], Absence(last={1: arrive(1, "barrier `w`")}),
         "  rank 1 does not answer; it was last seen at barrier `w` (train.py:1 in main)"),
        ([arrive(0, "barrier `y`"), arrive(1)], None,
         "different calls: rank 1 is at barrier `x` (train.py:1 in main), rank 0 at barrier `y`"),
    ],
)  # fmt: skip
def test_who_is_missing_and_where(arrivals, absence, text):
    assert text in (conclude("barrier `x`", arrivals, 2, absence).text or "")


def test_many_errors_are_cut():
    arrivals = [
        arrive(r, error=RankError(r, "OSError", f"disk {r}", "a.py:1 in f")) for r in range(40)
    ]
    text = conclude("agree `x`", arrivals, 40).text or ""
    assert text.startswith("agree `x`: ranks 0-39 failed\n")
    assert len(text.splitlines()) < 25
    assert "… and 32 more" in text
