"""Histories and how they are explained: who is blamed, the exit code, who is a victim."""

import signal
from dataclasses import replace

import pytest
from watch_history import VICTIM, exited, raised, replay

from puffrun.outcome import Hang, Waiting
from puffrun.watch import (
    AgentLost,
    DeadChild,
    Signalled,
    Stalled,
    add_late_victims,
    blame_missing,
    conclude,
)

INT, TERM = Signalled(signal.SIGINT), Signalled(signal.SIGTERM)
NCCL = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)"
MISMATCH = "terminate called after throwing an instance of 'gloo::EnforceNotMet' op.preamble.length"
ENDED = [(900, exited(rank, -15)) for rank in range(4)]

# name, what happened, (outcome, exit code, cause's kind, its rank, victims)
HISTORIES = [
    ("success", [(9, exited(r, 0)) for r in range(4)], ("success", 0, None, None, ())),
    ("an exit code", [(5, exited(2, 7)), *ENDED], ("failed", 7, "exit", 2, ())),
    ("an exit code over 128", [(5, exited(2, 255)), *ENDED], ("failed", 255, "exit", 2, ())),
    ("a signal", [(5, exited(1, -11)), *ENDED], ("failed", 139, "signal", 1, ())),
    ("oom", [(5, exited(1, -9, oom=True)), *ENDED], ("failed", 137, "oom", 1, ())),
    ("sigterm from elsewhere", [(5, exited(1, -15)), *ENDED], ("failed", 143, "signal", 1, ())),
    (
        "an exception with its exit code",
        [(5, raised(1)), (5, exited(1, 1)), *ENDED],
        ("failed", 1, "exception", 1, ()),
    ),
    (
        "an exception of a rank that lingered and was killed by us",
        [(5, raised(1)), (15, exited(1, -9)), *ENDED],
        ("failed", 1, "exception", 1, ()),
    ),
    (
        "an uncaught KeyboardInterrupt ends a rank by SIGINT",
        [(5, raised(1, "KeyboardInterrupt: ")), (5, exited(1, -2)), *ENDED],
        ("failed", 130, "exception", 1, ()),
    ),
    (
        "an exception that was seen only once the kill had begun explains nothing",
        [(5, raised(3, at_ns=2)), (5, raised(0, at_ns=1)), *ENDED],
        ("failed", 1, "exception", 3, ()),
    ),
    (
        "within the same millisecond, in one batch: the earlier exit",
        [(5, exited(2, 1, VICTIM, at_ns=9)), (5, exited(1, -6, at_ns=8)), *ENDED],
        ("failed", 134, "signal", 1, (2,)),
    ),
    (
        "two victims first, the culprit 2 s later",
        [
            (5, exited(0, 1, VICTIM, at_ns=1)),
            (5, exited(3, 1, VICTIM, at_ns=2)),
            (7, raised(2, at_ns=3)),
            (7, exited(2, 1, at_ns=4)),
            *ENDED,
        ],
        ("failed", 1, "exception", 2, (0, 3)),
    ),
    (
        "the culprit never shows up: the first victim is all there is",
        [(5, exited(3, 1, VICTIM, at_ns=1)), (6, exited(1, 1, VICTIM, at_ns=2)), *ENDED],
        ("failed", 1, "exit", 3, (1,)),
    ),
    (
        "victims by their exception, not by their log",
        [(5, raised(0, f"RuntimeError: {VICTIM}")), (6, exited(1, 9, at_ns=5)), *ENDED],
        ("failed", 9, "exit", 1, (0,)),
    ),
    (
        "an exit code whose log only ends with a victim's words",
        [(5, exited(0, 4, VICTIM)), (5, exited(1, 5, "my own reason")), *ENDED],
        ("failed", 5, "exit", 1, (0,)),
    ),
    (
        "a victim's words long before the end do not excuse",
        [(5, exited(0, 4, VICTIM, *["step"] * 20)), *ENDED],
        ("failed", 4, "exit", 0, ()),
    ),
    (
        "NCCL's watchdog aborts a victim",
        [(5, exited(0, -6, NCCL)), (6, exited(1, 3)), *ENDED],
        ("failed", 3, "exit", 1, (0,)),
    ),
    (
        "gloo's abort on a mismatch is no victim",
        [(5, exited(0, -6, MISMATCH)), *ENDED],
        ("failed", 134, "signal", 0, ()),
    ),
    ("early exit", [(5, exited(1, 0)), *ENDED], ("hung", 75, "early-exit", 1, ())),
    (
        "early exit that kills its peers",
        [(5, exited(1, 0)), (6, exited(0, 1, VICTIM)), (30, AgentLost("x")), *ENDED],
        ("hung", 75, "early-exit", 1, (0,)),
    ),
    (
        "early exit, then a failure of its own",
        [(5, exited(1, 0)), (6, exited(0, 1, "out of data")), *ENDED],
        ("failed", 1, "exit", 0, ()),
    ),
    ("ctrl-c", [(5, INT), *ENDED], ("stopped", 130, "stop", None, ())),
    ("ctrl-c twice", [(5, INT), (6, INT), *ENDED], ("stopped", 130, "stop", None, ())),
    ("the first signal counts", [(5, TERM), (6, INT), *ENDED], ("stopped", 143, "stop", None, ())),
    (
        "told to stop, exits 0",
        [(5, TERM), *[(6, exited(r, 0)) for r in range(4)]],
        ("stopped", 143, "stop", None, ()),
    ),
    (
        "told to stop when all had just exited 0",
        [*[(6, exited(r, 0)) for r in range(4)], (6, TERM)],
        ("stopped", 143, "stop", None, ()),
    ),
    (
        "a crash just before ctrl-c is the cause",
        [(5, exited(1, 0)), (5, exited(2, -11)), (5, INT), *ENDED],
        ("failed", 139, "signal", 2, ()),
    ),
    (
        "a victim's failure just before ctrl-c is not",
        [(5, exited(2, 1, VICTIM)), (6, INT), *ENDED],
        ("stopped", 130, "stop", None, (2,)),
    ),
    (
        "ctrl-c while a stalled run is being ended",
        [(700, Stalled(600.0)), (701, INT), (702, INT), *ENDED],
        ("hung", 75, "stall", None, ()),
    ),
    (
        "ctrl-c while those who waited for an early leaver are being ended",
        [(5, exited(1, 0)), (106, INT), *ENDED],
        ("hung", 75, "early-exit", 1, ()),
    ),
    (
        "ctrl-c while the ranks are ended whose agent was lost",
        [(5, AgentLost("gone")), (6, INT), *ENDED],
        ("launch-failed", 73, "agent-lost", None, ()),
    ),
    (
        "ctrl-c after the time limit",
        [(801, INT), *ENDED],
        ("timeout", 124, "timeout", None, ()),
    ),
    (
        "dead child",
        [(5, DeadChild(3, 77, "python", -11, 5.0)), *ENDED],
        ("hung", 75, "dead-child", 3, ()),
    ),
    ("stall", [(700, Stalled(600.0)), *ENDED], ("hung", 75, "stall", None, ())),
    ("stopped rank", [(700, Stalled(600.0, (2,))), *ENDED], ("hung", 75, "stall", 2, ())),
    ("agent lost", [(5, AgentLost("gone")), *ENDED], ("launch-failed", 73, "agent-lost", None, ())),
    (
        "a rank crashed, then the agent went",
        [(5, exited(2, 7)), (5, AgentLost("gone")), *ENDED],
        ("failed", 7, "exit", 2, ()),
    ),
    ("no status at all", [(5, AgentLost("gone"))], ("launch-failed", 73, "agent-lost", None, ())),
    ("time limit", ENDED, ("timeout", 124, "timeout", None, ())),
]


@pytest.mark.parametrize(("name", "moments", "expected"), HISTORIES, ids=[h[0] for h in HISTORIES])
def test_verdict(name, moments, expected) -> None:
    verdict = replay(*moments, ranks=4, timeout_s=800.0).verdict
    cause = verdict.cause
    got = (
        verdict.kind,
        verdict.exit_code,
        cause and cause.kind,
        cause and cause.rank,
        verdict.victims,
    )
    assert got == expected


def test_never_zero_when_a_status_is_missing() -> None:
    """Whatever happened: if not every rank is known to have exited 0, the code is not 0."""
    for known in range(4):
        history = replay(*[(1, exited(r, 0)) for r in range(known)], ranks=4)
        assert history.verdict.exit_code != 0
    for code in (None, 1, -9, -15):
        history = replay((1, exited(0, 0)), (1, exited(1, code)))
        assert history.verdict.exit_code not in {0, 128}


def test_the_early_leavers_and_those_who_wait_are_named() -> None:
    verdict = replay((1, exited(2, 0)), (2, exited(0, 0)), ranks=4, until_s=99).verdict
    assert verdict.cause is not None
    assert verdict.cause.detail == {"left": [0, 2], "still_running": [1, 3]}


def test_a_dead_child_says_whose_it_was_and_how_it_died() -> None:
    killed = replay((1, DeadChild(1, 77, "env", -11, 5.0))).verdict.cause
    assert killed is not None
    assert "pid 77" in killed.summary
    assert "SIGSEGV" in killed.summary
    assert killed.signal is None, "that is the child's, in the detail"
    exited_3 = replay((1, DeadChild(1, 77, "env", 3, 5.0))).verdict.cause
    assert exited_3 is not None
    assert "exited 3" in exited_3.summary


def test_an_uncaught_keyboard_interrupt_is_a_death_by_sigint() -> None:
    history = replay((1, raised(1, "KeyboardInterrupt: ")), (2, exited(1, -2)))
    cause = history.verdict.cause
    assert cause is not None
    assert (history.verdict.exit_code, cause.exit_code, cause.signal) == (130, None, 2)


@pytest.mark.parametrize("signum", [35, 64])
def test_a_signal_without_a_name_has_a_number(signum: int) -> None:
    cause = replay((1, exited(1, -signum))).verdict.cause
    assert cause is not None
    assert str(signum) in cause.summary or "SIGRT" in cause.summary


def test_a_verdict_does_not_depend_on_the_order_of_the_ranks() -> None:
    history = replay((5, exited(2, 7, at_ns=3)), (90, exited(0, -15)), ranks=4)
    backwards = dict(reversed(history.state.ranks.items()))
    assert conclude(replace(history.state, ranks=backwards)) == history.verdict


LIMIT = "RuntimeError: Timed out waiting 3000ms for recv operation to complete"


@pytest.mark.parametrize(
    ("moments", "culprits", "kind", "rank"),
    [
        ([(5, raised(0, LIMIT)), (6, exited(1, 1, VICTIM))], (2,), "stall", 2),
        ([(5, raised(0, LIMIT)), (6, exited(1, 1, VICTIM))], (), "exception", 0),
        ([(5, raised(0, LIMIT)), (6, exited(1, 7, "its own"))], (2,), "exit", 1),
        ([(5, raised(0, f"RuntimeError: {VICTIM}"))], (2,), "exception", 0),
        ([(5, raised(0, LIMIT))], (0,), "exception", 0),
    ],
    ids=["missed", "nobody known", "a failure of its own", "no limit", "the one that failed"],
)
def test_who_is_missed_is_to_blame_for_a_time_limit(moments, culprits, kind, rank) -> None:
    history = replay(*moments, *ENDED, ranks=4)
    hang = Hang("…", (Waiting((0, 1, 3), "barrier #2", "t.py:6"),), (), culprits)
    verdict = blame_missing(history.verdict, history.state, hang)
    assert verdict.cause is not None
    assert (verdict.cause.kind, verdict.cause.rank) == (kind, rank)
    if kind == "stall":
        assert (verdict.kind, verdict.exit_code, verdict.victims) == ("hung", 75, (0, 1))
        assert "rank 2 did not come, and the time limit of barrier #2" in verdict.cause.summary
    else:
        assert verdict == history.verdict


def test_a_victim_that_was_heard_of_too_late_is_one_if_it_fell_before_our_kill() -> None:
    history = replay((5, exited(1, -9)), *[(900, exited(r, -15)) for r in (0, 2, 3)], ranks=4)
    errors = {
        0: raised(0, f"RuntimeError: {VICTIM}", at_ns=7).record,
        2: raised(2, f"RuntimeError: {VICTIM}", at_ns=9).record,
        3: raised(3, at_ns=7).record,
    }
    verdict = add_late_victims(history.verdict, history.state, errors, stopped_at=8)
    assert history.verdict.victims == ()
    assert verdict.victims == (0,)
