"""The verdict is a pure function: every case here is a table of what was seen."""

from pathlib import Path

from puffrun.diagnose import conclude_hang
from puffrun.diagnose.waits import find_position
from puffrun.evidence import (
    Collective,
    Fallen,
    FlightRecord,
    NativeState,
    RankEvidence,
    ThreadStack,
)
from puffrun.evidence.flight_records import Journal
from puffrun.outcome import Frame
from puffrun.package import PACKAGE_DIR

CWD = Path("/job")
C10D = Frame(
    "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"
)
WRAPPER = Frame(
    "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper"
)
STEP = Frame("/job/train.py", 88, "step", "dist.all_reduce(x)")
SAVE = Frame("/job/ckpt.py", 40, "save_checkpoint", "time.sleep(9)")
IN_STEP = (C10D, WRAPPER, STEP)


def collective(seq, op="all_reduce", *, done=True, shape=(4,), group="0", at=0):
    return Collective(group, seq, op, "gloo", (shape,), ("Float",), at, done)


def rank(number, *collectives, frames=(), native=None, groups=None, **more):
    enqueued = {each.group: each.seq for each in collectives}
    return RankEvidence(
        number,
        100 + number,
        native=native or NativeState("S", "futex_do_wait"),
        record=FlightRecord(collectives, enqueued, {}),
        journal=Journal(groups or {"0": (0, 1, 2, 3)}, answers=True),
        threads=(ThreadStack(tuple(frames), is_main=True),) if frames else (),
        **more,
    )


def waiting(number, seq=5, **more):
    return rank(number, collective(seq, done=False, **more), frames=IN_STEP)


def conclude(*evidence, world_size=4, fallen=()):
    return conclude_hang(evidence, world_size=world_size, cwd=CWD, fallen=fallen)


def rows(hang):
    return [(w.ranks, w.op, w.at) for w in hang.waiting], [
        (m.ranks, m.at, m.doing) for m in hang.missing
    ]


def test_a_rank_is_missing():
    asleep = rank(1, collective(4), frames=(SAVE,), native=NativeState("S", "hrtimer_nanosleep"))
    hang = conclude(waiting(0), asleep, waiting(2), waiting(3))
    assert rows(hang) == (
        [((0, 2, 3), "all_reduce #5 (gloo, all ranks)", "train.py:88 in step")],
        [
            (
                (1,),
                "ckpt.py:40 in save_checkpoint",
                "is not in it; its last was all_reduce #4\nsleeps",
            )
        ],
    )
    assert hang.culprits == (1,)
    assert hang.text == "ranks 0, 2, 3 wait in all_reduce #5 (gloo, all ranks) for rank 1"


def test_the_fewer_are_the_odd_ones_out_also_when_they_are_the_ones_that_wait():
    others = [rank(n, collective(4), frames=(SAVE,)) for n in (1, 2, 3)]
    hang = conclude(waiting(0), *others)
    assert hang.culprits == (0,)
    assert hang.text == "rank 0 alone is in all_reduce #5 (gloo, all ranks)"
    assert hang.missing[0].doing.startswith("are not in it; their last was all_reduce #4")


def test_of_two_ranks_the_missing_one_is_named():
    groups = {"0": (0, 1)}
    wait = rank(0, collective(5, done=False), frames=IN_STEP, groups=groups)
    hang = conclude(wait, rank(1, collective(4), frames=(SAVE,), groups=groups), world_size=2)
    assert hang.culprits == (1,)


def test_operations_differ_at_one_sequence_number():
    hang = conclude(waiting(0), waiting(1, op="broadcast"), waiting(2), waiting(3))
    assert hang.culprits == (1,)
    assert hang.text == "the ranks disagree: they wait at different operations"
    assert [w.op for w in hang.waiting] == [
        "all_reduce #5 (gloo, all ranks)",
        "broadcast #5 (gloo, all ranks)",
    ]


def test_shapes_differ():
    hang = conclude(waiting(0), waiting(1, shape=(8,)), waiting(2), waiting(3))
    assert hang.culprits == (1,)
    assert hang.text == "the ranks disagree: they wait with different shapes"
    assert [w.op for w in hang.waiting][1] == "all_reduce #5 of [8] (gloo, all ranks)"


def test_shapes_differed_in_a_collective_that_the_others_have_left_behind():
    late = rank(1, collective(4, done=False, shape=(8,)), frames=IN_STEP)
    ahead = [
        rank(n, collective(4), collective(5, "barrier", done=False), frames=IN_STEP)
        for n in (0, 2, 3)
    ]
    hang = conclude(late, *ahead)
    assert hang.culprits == (1,)
    assert hang.text == (
        "the ranks disagree: #4 is all_reduce of [8] on rank 1, "
        "but it was all_reduce of [4] on ranks 0, 2, 3"
    )


def test_a_rank_that_still_waits_in_the_right_call_stands_with_those_who_have_left_it():
    root = rank(0, collective(2, "gather", done=False), frames=IN_STEP)
    odd = rank(1, collective(2, "scatter", done=False), frames=IN_STEP)
    ahead = [
        rank(n, collective(2, "gather"), collective(3, "barrier", done=False), frames=IN_STEP)
        for n in (2, 3)
    ]
    hang = conclude(root, odd, *ahead)
    assert hang.culprits == (1,)
    assert hang.text == (
        "the ranks disagree: #2 is scatter on rank 1, but it was gather on ranks 0, 2, 3"
    )


def test_shapes_may_differ_where_each_rank_has_its_own():
    root = waiting(0, op="scatter", shape=(4, 4))
    hang = conclude(root, *(waiting(n, op="scatter", shape=()) for n in (1, 2, 3)))
    assert hang.culprits == ()
    assert len(hang.waiting) == 1


def test_one_operation_called_at_different_places():
    elsewhere = (C10D, Frame("/job/train.py", 99, "evaluate"))
    odd = rank(1, collective(5, done=False), frames=elsewhere)
    hang = conclude(waiting(0), odd, waiting(2), waiting(3))
    assert hang.culprits == (1,)
    assert hang.text.endswith("they wait in the same operation, called at different places")


def test_half_against_half_accuses_nobody():
    hang = conclude(waiting(0), waiting(1), waiting(2, op="barrier"), waiting(3, op="barrier"))
    assert hang.culprits == ()


def test_all_ranks_are_in_it():
    hang = conclude(*(waiting(n) for n in range(4)))
    assert hang.culprits == ()
    assert hang.text.startswith("all ranks are in all_reduce #5 (gloo, all ranks): look at the net")


def test_no_rank_is_in_a_collective():
    hang = conclude(*(rank(n, collective(4), frames=(SAVE,)) for n in range(4)))
    assert (hang.text, hang.culprits) == ("no rank is in a collective", ())
    assert hang.missing[0].ranks == (0, 1, 2, 3)


def test_a_subgroup_is_known_by_its_members_not_by_its_name():
    pair = {"0": (0, 1, 2, 3), "7": (0, 1)}
    inner = rank(0, collective(1, "barrier", done=False, group="7"), frames=IN_STEP, groups=pair)
    missing = rank(1, collective(4), frames=(SAVE,), groups={"0": (0, 1, 2, 3), "9": (0, 1)})
    hang = conclude(inner, missing, waiting(2), waiting(3))
    assert hang.culprits == (1,)
    assert [w.op for w in hang.waiting] == [
        "all_reduce #5 (gloo, all ranks)",
        "barrier #1 (gloo, group of ranks 0, 1)",
    ]


def test_a_rank_outside_the_group_is_not_missing_from_it():
    pair = {"0": (0, 1, 2, 3), "7": (0, 1)}
    both = [
        rank(n, collective(1, "barrier", done=False, group="7"), frames=IN_STEP, groups=pair)
        for n in (0, 1)
    ]
    idle = [rank(n, collective(4), frames=(SAVE,)) for n in (2, 3)]
    hang = conclude(*both, *idle)
    assert hang.culprits == ()
    assert hang.text == "ranks 2, 3 are in no collective, and not waited for"


def test_a_rank_that_left():
    gone = Fallen(1, "exited 0")
    hang = conclude(waiting(0), waiting(2), waiting(3), fallen=[gone])
    assert [(m.ranks, m.doing, m.at) for m in hang.missing] == [((1,), "exited 0", "")]
    assert hang.culprits == (1,)


def test_victims_tell_where_they_were_by_their_exception():
    frames = tuple(reversed(IN_STEP))
    victims = [Fallen(n, "raised RuntimeError", frames, is_victim=True) for n in (0, 2, 3)]
    hang = conclude(fallen=[*victims, Fallen(1, "exited 0")])
    assert rows(hang)[0] == [((0, 2, 3), "all_reduce", "train.py:88 in step")]
    assert hang.culprits == (1,)


def test_a_victim_is_put_with_the_survivors_at_the_same_place():
    frames = tuple(reversed(IN_STEP))
    hang = conclude(
        waiting(0), waiting(2), fallen=[Fallen(3, "raised RuntimeError", frames, is_victim=True)]
    )
    assert [w.ranks for w in hang.waiting] == [(0, 2, 3)]


def test_a_victim_that_was_already_being_torn_down_when_it_was_asked():
    frames = tuple(reversed(IN_STEP))
    victim = Fallen(0, "raised RuntimeError", frames, is_victim=True)
    hang = conclude(rank(0), fallen=[victim, Fallen(1, "was killed by SIGSEGV")])
    assert rows(hang) == (
        [((0,), "all_reduce", "train.py:88 in step")],
        [((1,), "", "was killed by SIGSEGV")],
    )


def test_a_begun_collective_is_no_wait():
    busy = rank(1, collective(4), collective(5, done=False), frames=(SAVE,))
    hang = conclude(waiting(0, 6), busy, waiting(2, 6), waiting(3, 6))
    assert hang.culprits == (1,)
    assert hang.missing[0].doing.startswith(
        "has begun all_reduce #5 (gloo, all ranks) and not waited for it yet"
    )


def test_a_wait_on_an_asynchronous_collective_is_one():
    line = Frame("/job/train.py", 91, "step", "work.wait()")
    hang = conclude(rank(0, collective(5, done=False), frames=(line,)), world_size=1)
    assert [w.at for w in hang.waiting] == ["train.py:91 in step"]


def test_a_stopped_rank_does_not_wait_wherever_it_is():
    stopped = rank(1, collective(5, done=False), frames=IN_STEP, native=NativeState("T"))
    hang = conclude(waiting(0, 6), stopped, waiting(2, 6), waiting(3, 6))
    assert hang.culprits == (1,)
    assert "is stopped (SIGSTOP)" in hang.missing[0].doing


def test_what_is_not_known_is_said():
    mute = RankEvidence(
        1, 101, native=NativeState("S", "futex"), notes=("py-spy is not installed",)
    )
    hang = conclude(waiting(0), mute, waiting(2), waiting(3))
    assert hang.missing[0].doing == (
        "its collectives are not known: it has not imported torch, or Python ran without site "
        "(-S, -I, -E)\nwaits for a lock\n"
        "where in the program is not known: py-spy is not installed"
    )
    assert hang.culprits == (1,)


def test_the_gil_is_named():
    native = NativeState("S", "hrtimer_nanosleep")
    holder = RankEvidence(
        1,
        101,
        native=native,
        record=FlightRecord((collective(4),), {"0": 4}, {}),
        journal=Journal({"0": (0, 1, 2, 3)}, answers=True),
        threads=(ThreadStack((SAVE,), is_main=True, owns_gil=True),),
        holds_gil=True,
    )
    hang = conclude(waiting(0), holder, waiting(2), waiting(3))
    assert hang.missing[0].doing.endswith("holds the GIL in native code (sleep)")


def test_waiting_for_everybody_to_come_to_init_process_group():
    init = Frame(C10D.path, 9, "init_process_group")
    early = [
        RankEvidence(n, 100 + n, threads=(ThreadStack((init, STEP), is_main=True),))
        for n in (0, 2, 3)
    ]
    hang = conclude(*early, RankEvidence(1, 101, threads=(ThreadStack((SAVE,), is_main=True),)))
    assert rows(hang)[0] == [((0, 2, 3), "init_process_group", "train.py:88 in step")]
    assert hang.culprits == (1,)


def test_a_thread_of_the_program_may_be_the_one_that_waits():
    main = ThreadStack((Frame("/usr/lib/python3.11/threading.py", 1, "join"), SAVE), is_main=True)
    aside = ThreadStack(IN_STEP)
    evidence = RankEvidence(
        0,
        100,
        record=FlightRecord((collective(5, done=False),), {"0": 5}, {}),
        journal=Journal({"0": (0, 1)}, answers=True),
        threads=(aside, main),
    )
    hang = conclude(evidence, world_size=2)
    assert [w.at for w in hang.waiting] == ["train.py:88 in step"]


class TestRanksThatFallTogether:
    """A rank dies, and its peers are asked while they record that their connection is gone."""

    RECORDER = str(PACKAGE_DIR / "rank" / "recorder.py")
    RECORDING = tuple(
        Frame(path, 1, function)
        for path, function in (
            ("/usr/lib/python3.11/linecache.py", "updatecache"),
            (RECORDER, "record"),
            (RECORDER, "_try_to_record"),
            (RECORDER, "on_audit"),
            (str(Path(RECORDER).with_name("program.py")), "run_program"),
        )
    )

    def recording(self, number):
        return rank(number, collective(5, done=False), frames=self.RECORDING)

    def gone_peer(self, number, *, is_victim=True):
        return Fallen(number, "raised RuntimeError", tuple(reversed(IN_STEP)), is_victim)

    def test_their_errors_say_where_they_were(self):
        killed = Fallen(1, "was killed by SIGKILL")
        victims = [self.gone_peer(n) for n in (0, 3)]
        hang = conclude(self.recording(0), waiting(2), self.recording(3), fallen=[killed, *victims])
        assert rows(hang) == (
            [((0, 2, 3), "all_reduce #5 (gloo, all ranks)", "train.py:88 in step")],
            [((1,), "", "was killed by SIGKILL")],
        )

    def test_before_their_errors_are_read_only_what_they_do_is_said(self):
        hang = conclude(self.recording(0), waiting(2), waiting(3), self.recording(1))
        assert rows(hang)[1] == [((0, 1), "", "raise an exception")]

    def test_an_error_of_its_own_is_named(self):
        own = Fallen(0, "raised ValueError", (STEP,))
        hang = conclude(self.recording(0), waiting(1), waiting(2), waiting(3), fallen=[own])
        assert rows(hang)[1] == [((0,), "", "raised ValueError")]
        assert hang.culprits == (0,)

    def test_only_what_people_call_is_named_of_the_library(self):
        library = PACKAGE_DIR / "library"
        at_an_event = (Frame(self.RECORDER, 1, "on_audit"), STEP)
        assert find_position(rank(0, frames=at_an_event), CWD, 4).wait is None
        inside = Frame(str(library / "agreement/meeting.py"), 1, "meet")
        for file, function, op in (
            ("agreement/agree.py", "barrier", "puffrun.barrier"),
            ("preflight/guard.py", "check", "puffrun.guard"),
            ("agreement/run_once.py", "run_once", "puffrun.run_once"),
        ):
            assert (library / file).exists()
            frames = (inside, Frame(str(library / file), 1, function), STEP)
            wait = find_position(rank(0, frames=frames), CWD, 4).wait
            assert wait is not None
            assert wait.op == op
        looking = (Frame(str(library / "checkpoint.py"), 1, "latest_checkpoint"), STEP)
        assert find_position(rank(0, frames=looking), CWD, 4).wait is None
