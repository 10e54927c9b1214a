"""`run_once` and `main_first` among real processes."""

import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from ranks import Answer, ranks, run_ranks
from test_library_agree import the_error

from puffrun import barrier, main_first, progress, run_once
from puffrun.library.agreement.run_once import decode, encode

BUILD_ERROR = "run_once `fail_to_build`: rank 0 failed: OSError: no space left"


def fail_to_build():
    raise OSError("no space left")


def build_badly(rank, mail):
    run_once(fail_to_build)


def test_a_failed_build_is_the_same_error_everywhere():
    answers = run_ranks(4, build_badly)
    assert BUILD_ERROR in the_error(answers)
    assert "in fail_to_build" in the_error(answers)
    assert [answer.cause for answer in answers] == ["OSError", None, None, None]


def build(directory):
    path = Path(directory) / "out"
    with path.open("a") as file:
        file.write("built\n")
    return {"path": path, "sizes": (1, 2), "none": None}


def build_well(rank, mail, directory):
    return run_once(build, directory)


def test_one_rank_builds_and_all_get_its_result(tmp_path):
    answers = run_ranks(4, build_well, str(tmp_path))
    expected = {"path": tmp_path / "out", "sizes": [1, 2], "none": None}
    assert [answer.value for answer in answers] == [expected] * 4
    assert (tmp_path / "out").read_text() == "built\n"


def build_per_node(rank, mail):
    import os

    os.environ.update(GROUP_RANK=str(rank // 2), LOCAL_RANK=str(rank % 2))
    return run_once(lambda: rank, per_node=True)


def test_once_on_each_node():
    assert [answer.value for answer in run_ranks(4, build_per_node, together=False)] == [0, 0, 2, 2]


LONG_S = 4.0  # as long as a busy machine may let one of the processes stand still


def work_long(rank, mail, work):
    barrier("together")
    return run_once(work, timeout_s=LONG_S)


def compute():
    deadline = time.monotonic() + 2.5 * LONG_S
    while time.monotonic() < deadline:
        sum(range(1000))
    return "computed"


def report():
    for step in range(25):
        progress(step)
        threading.Event().wait(LONG_S / 10)
    return "reported"


def idle():
    threading.Event().wait(2.5 * LONG_S)


@pytest.mark.long
def test_work_that_goes_on_needs_no_longer_timeout_and_what_stands_still_is_given_up():
    with ExitStack() as stack:
        runs = [stack.enter_context(ranks(2, work_long, work)) for work in (compute, report, idle)]
        computed, reported, stood_still = [run.answers() for run in runs]
    assert [answer.value for answer in computed] == ["computed"] * 2
    assert [answer.value for answer in reported] == ["reported"] * 2
    text = the_error(stood_still)
    assert "run_once `idle`: rank 0 did not come within" in text
    assert "rank 0 is at" in text


def return_a_lock():
    return threading.Lock()


def once_unsendable(rank, mail):
    run_once(return_a_lock)


def test_a_result_that_cannot_travel_is_an_error_everywhere():
    assert "TypeError: a result of type lock cannot be sent" in the_error(
        run_ranks(2, once_unsendable)
    )


def first_then_all(rank, mail, directory, failing):
    path = Path(directory) / "cache"
    with main_first() as first:
        if rank == failing:
            raise ValueError("cache is broken")
        assert path.exists() != first
        path.touch()
    return sorted(path.parent.iterdir())


def test_main_first(tmp_path):
    answers = run_ranks(3, first_then_all, str(tmp_path), None)
    assert [answer.value for answer in answers] == [[tmp_path / "cache"]] * 3, answers


@pytest.mark.parametrize("failing", [0, 2])
def test_nobody_goes_on_when_main_first_fails(tmp_path, failing):
    text = the_error(run_ranks(3, first_then_all, str(tmp_path), failing))
    assert f"rank {failing} failed: ValueError: cache is broken" in text
    assert (tmp_path / "cache").exists() == (failing == 2)


def die_in_build():
    import os

    os.abort()


def once_dying(rank, mail):
    mail.send("ready")
    run_once(die_in_build)


def test_a_rank_that_dies_in_its_work_is_told():
    with ranks(3, once_dying) as run:
        assert [run.receive(rank) for rank in range(3)] == ["ready"] * 3
        run.processes[0].join(30)
        run.announce(0)
        answers: list[Answer] = run.answers(1, 2)
    assert "run_once `die_in_build`: rank 0 is gone (killed by SIGABRT)" in the_error(answers)


MARKED = [
    {"__path__": "/x"}, {"__path__": Path("/x")}, {"__path__": "/x", "b": 1}, {"__path__": None},
    {"__dict__": {"__path__": "/x"}}, {"__dict__": 3}, [{"__dict__": {"__dict__": {}}}],
]  # fmt: skip


@pytest.mark.parametrize(
    "value", [None, True, 1.5, "x", [1, [2]], {"a": {"b": Path("/x")}}, *MARKED]
)
def test_results_travel(value):
    assert decode(encode(value)) == value


def test_large_results_do_not():
    with pytest.raises(TypeError, match="larger than 1 MiB"):
        encode("x" * (1 << 21))
