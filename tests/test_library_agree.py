"""Agreement among real processes on a real store: the same text on every rank, never a hang."""

import atexit
import os
import signal
import subprocess
import sys
import threading

import pytest
from ranks import Answer, ranks, run_python, run_ranks

from puffrun import DisagreementError, agree, barrier, run_once
from puffrun.library.agreement import meeting
from puffrun.library.agreement.meeting import find_meetings
from puffrun.library.world import find_world


def the_error(answers: list[Answer]) -> str:
    """The one text that all ranks raised."""
    assert {answer.type for answer in answers} == {"DisagreementError"}, answers
    assert len({answer.error for answer in answers}) == 1, [a.error for a in answers]
    return answers[0].error or ""


class UnpicklableError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} {b}")
        self.lock = threading.Lock()


class BadTextError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def be_patient():
    """Give who comes late on a busy machine more than the second that others have for it."""
    meeting.WINDOW_S = 5.0


def fail_on(rank, mail, failing, make_error):
    be_patient()
    with agree("load"):
        if rank in failing:
            raise make_error()


def make_value_error():
    return ValueError("bad shard")


def make_unpicklable():
    return UnpicklableError("custom", "constructor")


def make_bad_text():
    return BadTextError()


def test_all_ok_many_times():
    assert [answer.value for answer in run_ranks(3, agree_often)] == [20, 20, 20]


def agree_often(rank, mail):
    for _ in range(20):
        with agree("round"):
            pass
    return 20


@pytest.mark.parametrize(
    ("make_error", "text"),
    [
        (make_value_error, "ValueError: bad shard"),
        (make_unpicklable, "UnpicklableError: custom constructor"),
        (make_bad_text, "BadTextError: <its message could not be read: RuntimeError>"),
    ],
)
def test_an_error_on_one_rank_is_the_error_of_all(make_error, text):
    answers = run_ranks(4, fail_on, (1,), make_error)
    assert f"agree `load`: rank 1 failed: {text}" in the_error(answers)
    assert "in fail_on" in the_error(answers)
    causes = [answer.cause for answer in answers]
    assert causes == [None, text.split(":")[0], None, None], "chained on the failing rank only"


def test_errors_of_several_ranks_are_all_told():
    text = the_error(run_ranks(4, fail_on, (0, 2), make_value_error))
    assert "ranks 0, 2 failed: ValueError: bad shard" in text


def stay_away(rank, mail):
    barrier("start")
    if rank == 1:
        mail.recv()  # until the test lets it
    barrier("save", timeout_s=5)


def test_a_missing_rank_is_named_with_its_place_and_a_late_one_hears_the_same():
    with ranks(3, stay_away) as run:
        early = run.answers(0, 2)
        run.mail[1].send("go on")
        late = run.receive(1)
        text = the_error([*early, late])
    assert text.startswith("barrier `save`: rank 1 did not come within 5 s\n")
    assert "rank 1 is at " in text
    assert "in stay_away" in text
    assert "ranks 0, 2 wait at" in text


LIMITS = (float("inf"), float("nan"), None, "5", -1, 1e12, True)


def wait_oddly(rank, mail):
    said = []
    for limit_s in LIMITS:
        try:
            barrier("odd", timeout_s=limit_s)
        except ValueError as error:
            said.append(str(error))
    barrier("even", timeout_s=60)
    return said


def test_a_limit_that_cannot_be_waited_for_is_refused_on_every_rank_alike():
    answers = run_ranks(2, wait_oddly)
    assert answers[0].value == answers[1].value, answers
    expected = [f"timeout_s has to be seconds, from 0 to 20 days, not {x!r}" for x in LIMITS]
    assert answers[0].value == expected
    with pytest.raises(ValueError, match="timeout_s has to be seconds"):  # alone too
        barrier("odd", timeout_s=float("inf"))


MEET = "from puffrun import barrier; barrier('child', timeout_s=60)"


def run_child(program):
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)


def fork_child(then):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            barrier("child", timeout_s=60)
            status = 0
            then()
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0


def leave_as_python_does():
    atexit._run_exitfuncs()


def start_children(rank, mail):
    barrier("start")
    if rank == 1:
        run_child(MEET)
        for then in (lambda: None, leave_as_python_does):
            fork_child(then)
    barrier("between")
    answer = run_once(lambda: run_child(MEET))
    stayed = rank == 1 and mail.recv() == "go on"
    barrier("end", timeout_s=1.0)
    return answer, stayed


def test_a_child_of_a_rank_is_alone_and_the_rank_still_answers():
    with ranks(2, start_children) as run:
        error = run.receive(0)
        assert error.error.startswith("barrier `end`: rank 1 did not come within 1 s"), error
        assert "rank 1 is at" in error.error
        run.mail[1].send("go on")


def test_a_launcher_inside_a_rank_gives_its_ranks_places_of_their_own():
    mine = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert find_world(mine).size == 2
    assert find_world(mine).size == 2, "asked again"
    below = {
        **mine,
        "PUFFRUN_RANK_TAKEN": mine["PUFFRUN_RANK_TAKEN"].replace(f"{os.getpid()}", "1"),
    }
    assert find_world(dict(below)).is_single
    for other in ({"MASTER_PORT": "2"}, {"RANK": "1"}, {"TORCHELASTIC_RUN_ID": "nested"}):
        assert find_world({**below, **other}).size == 2


def test_a_group_that_was_there_before_a_fork_is_the_parents():
    run_python(
        "import os, torch.distributed as dist\n"
        "from puffrun.library.world import SINGLE, find_world\n"
        "store = dist.HashStore()\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "assert find_world({}) is not SINGLE\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(find_world({}) is not SINGLE)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "dist.destroy_process_group()\n"
    )


def stop_yourself(rank, mail):
    barrier("first")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    barrier("second", timeout_s=0.3)


def test_a_stopped_rank_was_last_seen_somewhere():
    with ranks(2, stop_yourself) as run:
        text = run.receive(0).error
    assert "rank 1 does not answer; it was last seen at barrier `first`" in text


def differ(rank, mail):
    be_patient()
    barrier("save" if rank == 1 else "eval")


def test_different_names_are_an_error_at_once():
    answers = run_ranks(4, differ)
    text = the_error(answers)
    assert text.startswith("different calls: rank 1 is at barrier `save`")
    assert "ranks 0, 2, 3 at barrier `eval`" in text


def differ_while_one_is_away(rank, mail):
    barrier("start")
    if rank == 3:
        mail.recv()
    differ(rank, mail)


def test_different_names_do_not_wait_for_the_last_rank():
    with ranks(4, differ_while_one_is_away) as run:
        text = the_error(run.answers(0, 1, 2))
    assert "rank 3 had not come" in text


def meet_then_stay(rank, mail):
    barrier("start")
    mail.send("met")
    if rank == 2:
        mail.recv()
    barrier("end", timeout_s=60)


def test_the_agent_speaks_for_a_dead_rank():
    with ranks(3, meet_then_stay) as run:
        for rank in range(3):
            assert run.receive(rank) == "met"
        run.kill(2)
        run.announce(2)
        answers = run.answers(0, 1)
    assert "barrier `end`: rank 2 is gone (killed by SIGKILL) and will not come" in the_error(
        answers
    )


def come_after_a_death(rank, mail):
    barrier("start")
    mail.send("met")
    mail.recv()
    barrier("end", timeout_s=60)


def test_a_death_before_anybody_came_is_known_too():
    with ranks(3, come_after_a_death) as run:
        for rank in range(3):
            assert run.receive(rank) == "met"
        run.kill(0)
        run.announce(0)
        for rank in (1, 2):
            run.mail[rank].send("go on")
        assert "rank 0 is gone" in the_error(run.answers(1, 2))


def leave_by_exit(rank, mail):
    try:
        with agree("load"):
            if rank == 0:
                sys.exit(3)
    except SystemExit as error:
        raise RuntimeError(f"own code {error.code}") from None


def test_a_rank_that_exits_keeps_its_code_and_does_not_wait():
    answers = run_ranks(3, leave_by_exit)
    assert answers[0].error == "own code 3"
    assert "agree `load`: rank 0 failed: SystemExit: 3" in the_error(answers[1:])


def meet_again_when_told(rank, mail):
    barrier("together")
    mail.send("together")
    try:
        if rank == 1:
            mail.recv()
        barrier("wait")
    except KeyboardInterrupt:
        return "interrupted"


def test_a_wait_can_be_interrupted_and_nobody_waits_for_it():
    with ranks(2, meet_again_when_told) as run:
        assert [run.receive(rank) for rank in range(2)] == ["together"] * 2
        run.store.wait(["1/who"])  # rank 0 has come
        os.kill(run.processes[0].pid, signal.SIGINT)
        assert run.receive(0).value == "interrupted"
        run.mail[1].send("go on")
        assert "rank 0 failed: KeyboardInterrupt" in run.receive(1).error


def nest(rank, mail):
    try:
        with agree("outer"), agree("inner"):
            if rank == 0:
                raise ValueError("deep")
    except DisagreementError as error:
        first = str(error)
    with agree("afterwards"):
        pass
    return first


def test_a_disagreement_is_not_brought_twice():
    answers = run_ranks(3, nest)
    assert {answer.value for answer in answers} == {answers[0].value}
    assert answers[0].value.startswith("agree `inner`: rank 0 failed: ValueError: deep")


def count_keys(rank, mail):
    for number in range(30):
        barrier(f"{number}")
    return find_meetings().board.find_lines("25/who")


def test_old_meetings_are_forgotten():
    assert [answer.value for answer in run_ranks(2, count_keys)] == [[], []]


def test_a_single_process_agrees_with_itself_and_never_loads_torch():
    run_python(
        "import sys; from puffrun import agree, barrier, main_first, progress, run_once\n"
        "barrier('x')\n"
        "with agree('x'): pass\n"
        "with main_first() as first: assert first\n"
        "assert run_once(lambda: (1, 2)) == (1, 2)\n"
        "progress(1, loss=0.5)\n"
        "try:\n"
        "    with agree('x'): raise ValueError('plain')\n"
        "except ValueError as error: assert error.args == ('plain',)\n"
        "assert 'torch' not in sys.modules\n"
    )
