"""Whether a failed attempt is worth another."""

import pytest

from puffrun.outcome import Cause, OutcomeKind
from puffrun.watch import AttemptResult, GiveUp, Restart, decide_restart

SECOND = 1_000_000_000
USED_UP = "used up"
NO_FURTHER = "got no further"


def attempt(
    number: int,
    *,
    kind: OutcomeKind = "failed",
    lived_s: float = 10.0,
    summary: str = "exited 1",
    checkpoint: str | None = None,
    step: int | None = None,
) -> AttemptResult:
    cause = Cause("exit", summary, rank=number % 2)
    ended_at = int(lived_s * SECOND)
    return AttemptResult(number, kind, 1, 0, ended_at, cause, checkpoint, step)


FIRST = attempt(0)


@pytest.mark.parametrize(
    ("name", "attempts", "max_restarts", "expected"),
    [
        ("no restarts were asked for", [FIRST], 0, None),
        ("the first failure", [FIRST], 3, 1.0),
        ("a hang", [attempt(0, kind="hung")], 3, 1.0),
        ("a success", [attempt(0, kind="success")], 3, None),
        ("told to stop", [attempt(0, kind="stopped")], 3, None),
        ("out of time", [attempt(0, kind="timeout")], 3, None),
        ("puffrun's own failure", [attempt(0, kind="launch-failed")], 3, None),
        ("ranks disagree: they would again", [attempt(0, kind="disagreed")], 3, None),
        ("the same again, from a program that reports nothing", [FIRST, attempt(1)], 3, 2.0),
        ("and again, from another rank only", [FIRST, attempt(1), attempt(2)], 3, NO_FURTHER),
        ("idle once, then further", [FIRST, attempt(1), attempt(2, lived_s=30.0)], 3, 4.0),
        (
            "a long life",
            [attempt(0, lived_s=9e3), attempt(1, lived_s=8e3), attempt(2, lived_s=61)],
            9,
            4.0,
        ),
        ("another cause", [FIRST, attempt(1, summary="exited 2")], 3, 2.0),
        ("a new checkpoint", [FIRST, attempt(1, checkpoint="b")], 3, 2.0),
        (
            "the same checkpoint",
            [attempt(0, checkpoint="a"), attempt(1, checkpoint="a")],
            3,
            NO_FURTHER,
        ),
        ("a later step", [attempt(0, step=5), attempt(1, step=6)], 3, 2.0),
        ("an earlier step", [attempt(0, step=5), attempt(1, step=4)], 3, NO_FURTHER),
        ("a first step", [FIRST, attempt(1, step=1)], 3, 2.0),
        ("a longer life", [FIRST, attempt(1, lived_s=21.0)], 3, 2.0),
        ("hardly a longer life", [FIRST, attempt(1), attempt(2, lived_s=19.0)], 3, NO_FURTHER),
        (
            "a slower start",
            [attempt(0, lived_s=1.0), attempt(1, lived_s=2.0), attempt(2, lived_s=4.0)],
            3,
            NO_FURTHER,
        ),
        (
            "all used up",
            [FIRST, attempt(1, checkpoint="a"), attempt(2, checkpoint="b")],
            2,
            USED_UP,
        ),
        (
            "the last one that may be",
            [FIRST, attempt(1, checkpoint="a"), attempt(2, checkpoint="b")],
            3,
            4.0,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_decision(name, attempts, max_restarts, expected) -> None:
    decision = decide_restart(attempts, max_restarts)
    if isinstance(expected, float):
        assert decision == Restart(expected), name
    elif expected is None:
        assert decision == GiveUp(None)
    else:
        assert isinstance(decision, GiveUp)
        assert expected in (decision.reason or "")


def test_the_delay_doubles_up_to_half_a_minute() -> None:
    delays = []
    for count in range(1, 9):
        decision = decide_restart([attempt(n, checkpoint=str(n)) for n in range(count)], 99)
        assert isinstance(decision, Restart)
        delays.append(decision.delay_s)
    assert delays == [1, 2, 4, 8, 16, 30, 30, 30]
