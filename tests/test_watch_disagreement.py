"""Disagreements: every rank raises the same text; who is blamed for it, and with which code."""

import pytest
from watch_history import History, exited, raised, replay

from puffrun.watch import Stop

ERROR = "DisagreementError: run_once `build`: rank 0 failed: OSError: no space"
ORDER = "DisagreementError: preflight: rank 1 differs from ranks 0, 2\n  order  ..."
NOBODY = "DisagreementError: preflight: the ranks cannot train together\n  names  ..."
# ruff: noqa: E501  # tables
NAMES = "DisagreementError: different calls: rank 1 is at barrier `a`, ranks 0, 2 at barrier `b`"
MISSING = "DisagreementError: barrier `save`: rank 1 did not come within 30 s\n  ..."
GONE = "DisagreementError: barrier `save`: rank 1 is gone (exited 0) and will not come\n  ..."
GONE_TWO = "DisagreementError: barrier `save`: ranks 1, 2 are gone (exited 7) and will not come"
PAIR = "DisagreementError: agree `load`: ranks 0, 2 failed\n  ..."


def all_say(text, *ranks):
    return [(5.0, raised(rank, text, at_ns=rank)) for rank in ranks or range(3)]


def all_exit(*ranks):
    return [(5.1, exited(rank, 1)) for rank in ranks or range(3)]


def end_of(history: History):
    verdict = history.verdict
    cause = verdict.cause
    return verdict.kind, verdict.exit_code, cause.kind, cause.rank, verdict.victims


DISAGREED = ("disagreed", 74, "disagreement")
HISTORIES = {
    "an error of one rank": (all_say(ERROR) + all_exit(), (*DISAGREED, 0, (1, 2))),
    "a rank that differs": (all_say(ORDER) + all_exit(), (*DISAGREED, 1, (0, 2))),
    "nobody in particular": (all_say(NOBODY) + all_exit(), (*DISAGREED, None, (0, 1, 2))),
    "different calls": (all_say(NAMES) + all_exit(), (*DISAGREED, 1, (0, 2))),
    "two that failed": (all_say(PAIR) + all_exit(), (*DISAGREED, None, (0, 1, 2))),
    "a missing rank": (all_say(MISSING, 0, 2) + all_exit(0, 2), (*DISAGREED, 1, (0, 2))),
    "own exit code": (all_say(ERROR) + [(5.1, exited(r, 9)) for r in range(3)],
                      ("disagreed", 9, "disagreement", 0, (1, 2))),
    "a rank left early": (
        [(4.0, exited(1, 0)), *all_say(GONE, 0, 2), *all_exit(0, 2)],
        ("hung", 75, "early-exit", 1, (0, 2)),
    ),
    "ranks that failed are gone": (
        [(4.0, exited(1, 7)), (4.0, exited(2, 7, at_ns=1)), *all_say(GONE_TWO, 0), (9.0, exited(0, 1))],
        ("failed", 7, "exit", 1, ()),
    ),
    "a true cause beside it": (
        [*all_say(MISSING, 0, 2), (5.5, raised(1, "ValueError: late")), *all_exit()],
        ("failed", 1, "exception", 1, (0, 2)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
def test_who_is_blamed(name):
    moments, expected = HISTORIES[name]
    history = replay(*moments, ranks=3, until_s=20)
    assert end_of(history) == expected


def test_all_ranks_may_say_it_before_the_kill():
    history = replay(*all_say(ERROR), ranks=3)
    assert history.first(Stop) is None
    history.pass_time(8.5)
    assert history.names[-1] == "Stop", "a rank that does not leave is ended all the same"


def test_the_culprits_own_traceback_is_shown_and_no_other_ranks():
    cause = replay(*all_say(ERROR), *all_exit(), ranks=3).verdict.cause
    assert cause is not None
    assert cause.traceback is not None
    cause = replay(*all_say(MISSING, 0, 2), *all_exit(0, 2), ranks=3, until_s=20).verdict.cause
    assert cause is not None
    assert cause.traceback is None
