"""Histories: what is observed when, and what the watchdog asks for in answer."""

import signal

import pytest
from watch_history import VICTIM, History, exited, raised, replay, started

from puffrun.watch import (
    AgentLost,
    Collect,
    DeadChild,
    Forward,
    Hurry,
    ReaderAwaited,
    Rules,
    Signalled,
    Stalled,
    Stop,
    TreeEnded,
    WatchState,
    shift,
    step,
)

INT = Signalled(signal.SIGINT)


@pytest.mark.parametrize(
    ("name", "moments", "stop_at_s"),
    [
        ("an exit code", [(5, exited(1, 7))], 5),
        ("a signal", [(5, exited(1, -11))], 5),
        ("an unknown status", [(5, exited(1, None))], 5),
        ("an exception, though the rank lingers", [(5, raised(1))], 5),
        ("a dead child", [(9, DeadChild(0, 7, "python", -11, 5.0))], 9),
        ("a stall", [(700, Stalled(600.0))], 700),
        ("the agent's death", [(2, AgentLost("gone"))], 2),
        ("a signal that ends", [(3, INT)], 3),
        ("a victim, and nobody to blame for 3 s", [(5, exited(0, 1, VICTIM))], 8),
        ("a victim's exception", [(5, raised(0, f"RuntimeError: {VICTIM}"))], 8),
        ("victims first, the culprit after 2 s", [(5, exited(0, 1, VICTIM)), (7, raised(1))], 7),
        (
            "more victims do not prolong the wait",
            [(5, exited(0, 1, VICTIM)), (7, exited(1, 1, VICTIM))],
            8,
        ),
        ("a rank that leaves with 0", [(5, exited(1, 0))], 65),
        ("the first of two that leave counts", [(5, exited(1, 0)), (50, exited(2, 0))], 65),
        ("a failure after an early leave", [(5, exited(1, 0)), (9, exited(2, 3))], 9),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_evidence_is_taken_and_the_kill_begins(name, moments, stop_at_s) -> None:
    history = replay(*moments, ranks=4, until_s=1000)
    assert history.first(Stop) == stop_at_s, name
    collected = history.first(Collect)
    assert collected == (None if INT in dict(moments).values() else stop_at_s)
    assert history.names.count("Stop") == 1
    if collected is not None:
        assert history.names.index("Collect") < history.names.index("Stop")


def test_a_run_that_goes_well_is_left_alone_until_its_last_rank_has_gone() -> None:
    history = replay((10, exited(0, 0)), (12, exited(1, 0)))
    assert history.acts == [(12, Stop())], "what the ranks left behind is ended, without evidence"
    history.see(TreeEnded(), 12)
    assert history.names == ["Stop", "Finish"]
    assert history.state.finished


def test_nothing_is_ended_before_every_rank_has_started() -> None:
    history = History(WatchState(Rules(world_size=2), 0.0))
    history.see(started(0), 1)
    history.see(exited(0, 0), 2)
    assert history.names == []
    history.see(started(1), 3)
    history.see(exited(1, 0), 4)
    assert history.first(Stop) == 4


def test_a_failure_while_others_still_start_ends_the_run() -> None:
    history = History(WatchState(Rules(world_size=2), 0.0))
    history.see(started(0), 1)
    history.see(exited(0, 3), 2)
    assert history.names == ["Collect", "Stop"]
    history.see(started(1), 3)  # it was on its way
    assert history.verdict.exit_code == 3


def test_every_further_ctrl_c_asks_to_hurry_and_changes_nothing_else() -> None:
    history = replay(*[(at, INT) for at in range(1, 11)])
    assert history.names == ["Stop"] + ["Hurry"] * 9
    assert history.verdict.exit_code == 130


def test_ctrl_c_hurries_a_kill_that_a_failure_began() -> None:
    history = replay((1, exited(1, 7)), (2, INT), (2, exited(0, -9)), (2, TreeEnded()))
    assert history.names == ["Collect", "Stop", "Hurry", "Finish"]
    assert history.verdict.exit_code == 7, "what failed first is still what failed"


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH])
def test_a_signal_for_the_ranks_goes_to_the_ranks_and_the_run_goes_on(signum: int) -> None:
    history = replay((1, Signalled(signum)), (2, exited(0, 0)), (2, exited(1, 0)))
    assert history.acts[0] == (1, Forward(signum))
    assert history.verdict.exit_code == 0


def test_the_time_limit_counts_from_the_start_of_the_run() -> None:
    history = replay(until_s=100, timeout_s=30.0)
    assert history.first(Stop) == 30


def test_who_waits_for_a_reader_is_not_late() -> None:
    history = replay((5, exited(1, 0)), ranks=2, exit_timeout_s=60.0, timeout_s=500.0)
    before = history.state.deadlines()
    after = step(history.state, ReaderAwaited(7.0), 12.0)[0].deadlines()
    assert after == {**before, "exit": before["exit"] + 7.0}
    nobody = replay(until_s=3, timeout_s=500.0).state
    assert step(nobody, ReaderAwaited(7.0), 12.0) == (nobody, ())


def test_after_the_kill_has_begun_no_deadline_is_left() -> None:
    history = replay((5, exited(1, 0)), (6, exited(0, 3)), until_s=500, timeout_s=100.0)
    assert history.names == ["Stop"]
    assert history.state.next_deadline_s() is None


def test_a_rank_that_is_heard_of_twice_keeps_its_first_status() -> None:
    history = replay((1, exited(1, 7)), (2, exited(1, -9)))
    assert history.state.ranks[1].returncode == 7


def test_what_a_rank_raises_while_it_is_being_killed_explains_nothing() -> None:
    history = replay((1, INT), (2, raised(0)), (3, exited(0, 1)), (3, exited(1, -15)))
    assert history.state.ranks[0].error is None
    assert history.verdict.kind == "stopped"


def test_an_error_of_a_rank_that_nobody_knows_is_ignored() -> None:
    history = History(WatchState(Rules(world_size=2), 0.0))
    history.see(raised(1), 1)
    assert history.names == []


@pytest.mark.parametrize(
    ("name", "moments", "rules", "was_due_at_s"),
    [
        ("blame", [(5, exited(0, 1, VICTIM))], {}, 8),
        ("exit", [(5, exited(0, 0))], {"exit_timeout_s": 10.0}, 15),
        ("timeout", [], {"timeout_s": 30.0}, 30),
    ],
)
def test_a_pause_moves_every_deadline(name, moments, rules, was_due_at_s) -> None:
    history = replay(*moments, **rules)
    assert history.state.deadlines() == {name: was_due_at_s}
    assert shift(history.state, 100.0).deadlines() == {name: was_due_at_s + 100.0}


def test_a_pause_shifts_no_deadline_that_is_not_running() -> None:
    state = shift(replay().state, 100.0)
    assert state.next_deadline_s() is None


def test_hurry_is_asked_for_at_any_time_once_stopping() -> None:
    history = replay((1, exited(0, 0)), (1, exited(1, 0)), (4, INT))
    assert history.acts == [(1, Stop()), (4, Hurry())]
    assert history.verdict.exit_code == 130, "never 0 when somebody asked to stop"
