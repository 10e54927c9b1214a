"""Who gets which signal when, with processes that are only values; and the same with real ones."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
from harness import wait_for

from puffrun.process import ProcStat, find_stat
from puffrun.process.ending import KILL_PATIENCE_S, LEAVING_S, Ending, EndingPlan

TERM, KILL, CONT = signal.SIGTERM, signal.SIGKILL, signal.SIGCONT
RANK0, RANK1, AGENT, CHILD, LATE = 10, 11, 20, 30, 31


@dataclass
class FakeTree:
    """Processes by pid. `on_signal` says what a process makes of one: "die", or stay."""

    members: dict[int, ProcStat] = field(default_factory=dict)
    ignoring: set[int] = field(default_factory=set)
    unkillable: set[int] = field(default_factory=set)
    sent: list[tuple[int, int]] = field(default_factory=list)

    def add(self, *pids: int, started: int = 1) -> None:
        for pid in pids:
            self.members[pid] = ProcStat(pid, 1, f"p{pid}", "S", started, 0)

    def find(self) -> list[ProcStat]:
        return list(self.members.values())

    def signal(self, target: ProcStat, signum: int) -> bool:
        now = self.members.get(target.pid)
        if now is None or now.started != target.started or not now.alive:
            return False
        self.sent.append((target.pid, signum))
        stays = self.ignoring if signum == TERM else self.unkillable
        if signum in (TERM, KILL) and target.pid not in stays | self.unkillable:
            self.members[target.pid] = replace(now, state="Z")
        return True

    def got(self, pid: int) -> list[int]:
        return [signum for to, signum in self.sent if to == pid]


def make(tree: FakeTree, grace_s: float = 10.0, **plan) -> Ending:
    plan = {"leaders": (RANK0, RANK1), "ours": (AGENT,), **plan}
    return Ending(EndingPlan(grace_s, **plan), 100.0, tree.find, tree.signal)


def tree_of(*pids: int) -> FakeTree:
    tree = FakeTree()
    tree.add(*pids)
    return tree


def test_nothing_to_end_is_the_end() -> None:
    assert make(FakeTree()).step(100.0)


def test_leaders_first_then_the_rest_and_our_own_at_once() -> None:
    tree = tree_of(AGENT, RANK0, RANK1, CHILD)
    ending = make(tree)
    assert not ending.step(100.0)
    assert tree.sent == [(RANK0, TERM), (RANK1, TERM)], "data loaders outlive a rank that saves"
    assert not ending.step(100.1)
    assert tree.sent[2:] == [(AGENT, KILL), (CHILD, TERM)]
    assert ending.step(100.2)
    assert ending.leftovers == ()


def test_a_stopped_process_gets_a_sigcont_so_that_it_can_die() -> None:
    tree = tree_of(RANK0)
    tree.ignoring.add(RANK0)
    make(tree).step(100.0)
    assert tree.sent == [(RANK0, TERM), (RANK0, CONT)]


def test_who_ignores_sigterm_is_asked_once_and_killed_after_the_grace() -> None:
    tree = tree_of(RANK0, CHILD)
    tree.ignoring |= {RANK0, CHILD}
    ending = make(tree, grace_s=10.0)
    for now in (100.0, 101.0, 109.9):
        assert not ending.step(now)
    assert tree.got(RANK0) == [TERM, CONT]
    assert tree.got(CHILD) == [], "while a leader lives its children are left alone"
    assert not ending.step(110.0)
    assert tree.got(CHILD) == [KILL]
    assert ending.step(110.1)


def test_children_of_a_leader_that_died_late_are_still_asked() -> None:
    tree = tree_of(RANK0, CHILD)
    tree.ignoring |= {RANK0, CHILD}
    ending = make(tree)
    ending.step(100.0)
    del tree.members[RANK0]
    ending.step(105.0)
    assert tree.got(CHILD) == [TERM, CONT]


def test_processes_that_appear_while_the_kill_is_under_way_are_ended_too() -> None:
    tree = tree_of(RANK0)
    ending = make(tree, grace_s=1.0)
    ending.step(100.0)
    tree.add(CHILD)
    tree.ignoring.add(CHILD)
    ending.step(100.5)
    ending.step(101.0)
    tree.add(LATE)
    assert not ending.step(101.1)
    assert tree.got(LATE) == [KILL]
    assert ending.step(101.2)


def test_a_reused_pid_is_asked_anew() -> None:
    tree = tree_of(CHILD)
    tree.ignoring.add(CHILD)
    ending = make(tree)
    ending.step(100.0)
    tree.add(CHILD, started=2)
    ending.step(100.1)
    assert tree.got(CHILD) == [TERM, CONT, TERM, CONT]
    assert len(ending.touched) == 2


def test_a_rank_that_leaves_by_itself_may_finish_its_last_words() -> None:
    tree = tree_of(RANK0, RANK1)
    tree.ignoring |= {RANK0, RANK1}
    ending = make(tree, grace_s=10.0, leaving=(RANK0,))
    ending.step(100.0)
    assert (tree.got(RANK0), tree.got(RANK1)) == ([], [TERM, CONT])
    ending.step(100.0 + LEAVING_S)
    assert tree.got(RANK0) == [TERM, CONT]


def test_with_a_short_grace_leaving_takes_at_most_half_of_it() -> None:
    tree = tree_of(RANK0)
    ending = make(tree, grace_s=1.0, leaving=(RANK0,))
    ending.step(100.49)
    assert tree.got(RANK0) == []
    ending.step(100.5)
    assert tree.got(RANK0) == [TERM]


def test_hurry_cuts_the_grace_to_nothing() -> None:
    tree = tree_of(RANK0)
    tree.ignoring.add(RANK0)
    ending = make(tree, grace_s=1000.0)
    ending.step(100.0)
    ending.hurry(101.0)
    ending.step(101.0)
    assert tree.got(RANK0)[-1] == KILL


def test_hurry_never_prolongs() -> None:
    tree = tree_of(RANK0)
    tree.ignoring.add(RANK0)
    tree.unkillable.add(RANK0)
    ending = make(tree, grace_s=1.0)
    ending.step(101.0)
    ending.hurry(105.0)
    assert ending.step(101.0 + KILL_PATIENCE_S)
    assert [s.pid for s in ending.leftovers] == [RANK0]


def test_no_grace_means_sigkill_at_once() -> None:
    tree = tree_of(RANK0, CHILD, AGENT)
    ending = make(tree, grace_s=0.0)
    assert not ending.step(100.0)
    assert [tree.got(pid) for pid in (RANK0, CHILD, AGENT)] == [[KILL]] * 3


def test_what_survives_sigkill_is_named_and_not_waited_for_for_ever() -> None:
    tree = tree_of(RANK0, CHILD)
    tree.unkillable.add(CHILD)
    ending = make(tree, grace_s=1.0)
    now = 100.0
    while not ending.step(now):
        now += 0.5
    assert now <= 100.0 + 1.0 + KILL_PATIENCE_S
    assert [s.pid for s in ending.leftovers] == [CHILD]


def test_what_may_not_be_signalled_is_left_over_not_touched() -> None:
    tree = tree_of(CHILD)
    ending = Ending(EndingPlan(1.0), 100.0, tree.find, lambda _stat, _signum: False)
    assert not ending.step(100.0)
    assert ending.step(100.0 + 1.0 + KILL_PATIENCE_S)
    assert ending.touched == ()
    assert [s.pid for s in ending.leftovers] == [CHILD]


def test_spared_daemons_are_not_part_of_it() -> None:
    tree = tree_of(CHILD, LATE)
    ending = make(tree, spare=(f"p{LATE}",))
    assert not ending.step(100.0)
    assert ending.step(100.1)
    assert tree.got(LATE) == []


def test_our_own_helpers_are_not_reported_as_cleaned() -> None:
    tree = tree_of(AGENT, CHILD)
    ending = make(tree)
    ending.step(100.0)
    assert [s.pid for s in ending.touched] == [CHILD]


def test_zombies_are_not_waited_for() -> None:
    tree = tree_of(RANK0)
    tree.members[RANK0] = replace(tree.members[RANK0], state="Z")
    assert make(tree).step(100.0)


# the contract: the fake behaves as the kernel does

Scene = tuple[Callable[[], list[ProcStat]], Callable[[ProcStat, int], bool], dict[str, int]]


@contextmanager
def fake_scene() -> Iterator[Scene]:
    tree = tree_of(RANK0, RANK1)
    tree.ignoring.add(RANK1)
    yield tree.find, tree.signal, {"polite": RANK0, "stubborn": RANK1}


@contextmanager
def real_scene() -> Iterator[Scene]:
    from puffrun.process import send_signal

    polite = "print('up', flush=True); input()"
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + polite
    popens = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for code in (polite, stubborn)
    ]
    try:
        for popen in popens:
            assert popen.stdout is not None
            popen.stdout.readline()
        pids = [popen.pid for popen in popens]

        def find() -> list[ProcStat]:
            return [stat for stat in map(find_stat, pids) if stat is not None]

        yield find, send_signal, {"polite": pids[0], "stubborn": pids[1]}
    finally:
        for popen in popens:
            popen.kill()
            popen.communicate()


@pytest.mark.parametrize("scene", [fake_scene, real_scene], ids=["fake", "real"])
def test_the_fake_tree_is_like_a_real_one(scene: Callable) -> None:
    with scene() as (find, send, pids):
        by_pid = {stat.pid: stat for stat in find()}
        polite, stubborn = by_pid[pids["polite"]], by_pid[pids["stubborn"]]

        def is_dead(target: ProcStat) -> bool:
            return not any(s.alive for s in find() if s.pid == target.pid)

        for target in (polite, stubborn):
            assert send(target, TERM)
        assert wait_for(lambda: is_dead(polite), "SIGTERM to work")
        assert not send(polite, TERM), "a zombie takes no signal"
        assert send(stubborn, CONT)
        assert not is_dead(stubborn)
        assert not send(replace(stubborn, started=stubborn.started + 1), KILL)
        assert not is_dead(stubborn)
        assert send(stubborn, KILL)
        assert wait_for(lambda: is_dead(stubborn), "SIGKILL to work")


def test_a_real_tree_ends_in_its_grace() -> None:
    with real_scene() as (find, send, _):
        now = time.monotonic()
        ending = Ending(EndingPlan(grace_s=0.3), now, find, send)
        assert wait_for(lambda: ending.step(time.monotonic()), "the end", timeout_s=20)
        assert ending.leftovers == ()
        assert all(not stat.alive for stat in find())
        assert os.getpid() not in {stat.pid for stat in ending.touched}


def test_helpers_may_leave_by_themselves_before_they_are_asked() -> None:
    tree = tree_of(CHILD)
    ending = make(tree, grace_s=5.0, patience_s=2.0)
    assert not ending.step(101.9)
    assert tree.sent == []
    assert not ending.step(102.0)
    assert tree.got(CHILD) == [TERM]
    assert ending.step(102.1)
    assert [stat.pid for stat in ending.touched] == [CHILD]
