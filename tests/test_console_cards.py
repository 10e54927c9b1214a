"""Golden cards: each case is drawn at two widths and compared with `tests/cards/NAME.txt`.

After a wanted change: `python tests/test_console_cards.py` writes the files anew; read the diff.
"""

import dataclasses
import json
from pathlib import Path

import pytest

from puffrun.console import (
    LaunchScreen,
    RunFacts,
    Screen,
    facts_from_json,
    facts_of,
    render_card,
    render_title,
)
from puffrun.console.card.card import MAX_LINES
from puffrun.console.card.frames import pick_user_frames
from puffrun.console.paint import Paint
from puffrun.console.text import count_cells
from puffrun.outcome import (
    ArtifactResult,
    Cause,
    Frame,
    Hang,
    Missing,
    Outcome,
    Process,
    RankResult,
    Waiting,
)
from puffrun.plan import LaunchPlan

CARDS_DIR = Path(__file__).parent / "cards"
WIDTHS = (80, 40)
MINUTE = 60 * 10**9
FACTS = RunFacts(
    run_id="1130-1042-k7fqa",
    run_dir=Path("/p/.puffrun/runs/1130-1042-k7fqa"),
    cwd=Path("/p"),
    shown_from=Path("/p"),
    program="train.py",
    again="puffrun train --gpus 4 train.py",
    ranks_per_node=4,
    on_gpus=True,
    device_name="NVIDIA H100",
    stall_timeout_s=600.0,
    exit_timeout_s=60.0,
    timeout_s=7200.0,
    report_command="puffrun report",
)
SITE = "/p/.venv/lib/python3.11/site-packages"
FRAMES = (
    Frame("<frozen runpy>", 88, "_run_code"),
    Frame("/p/train.py", 112, "main", "trainer.step()"),
    Frame("/usr/lib/python3.11/contextlib.py", 81, "inner", "return func(*args, **kwds)"),
    Frame("/p/trainer.py", 40, "step", "obs = self.envs.recv()"),
    Frame(f"{SITE}/torch/nn/modules/module.py", 1773, "_call_impl", "return forward_call()"),
    Frame("/p/envs.py", 201, "recv", 'raise ValueError(f"expected {n} observations")'),
)
TRACEBACK = """Traceback (most recent call last):
  File "/p/train.py", line 3, in <module>
    main()
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/p/train.py", line 9, in <module>
    main()
  File "/p/lib/python3.11/site-packages/torch/x.py", line 1, in f
    g()
  File "/p/train.py", line 7, in main
    return registry[name]
           ~~~~~~~~^^^^^^
KeyError: 'second'
"""
WAITING = Waiting((0, 2, 3), "all_reduce #5 (gloo, all ranks)", "train.py:88 in step")
VERDICT = Hang(
    "ranks 0, 2, 3 wait, rank 1 does not",
    (WAITING,),
    (
        Missing(
            (1,),
            "ckpt.py:40 in save_checkpoint",
            "is not in it; its last was all_reduce #4\nholds the GIL in native code (sleep)",
        ),
    ),
)
TOLD = dataclasses.replace(VERDICT, culprits=(1,))


def rank_results(count=4, cause=None, others="killed", **end):
    return tuple(
        RankResult(rank, rank, 0, "cause", **{"pid": 100 + rank, **end})
        if rank == cause
        else RankResult(rank, rank, 0, others, pid=100 + rank)
        for rank in range(count)
    )


def make(kind, exit_code, cause, *, of=4, others="killed", **more):
    blamed = cause.rank if cause else None
    fields = {"started_at": 0, "ended_at": 41 * MINUTE, "cause": cause} | more
    fields.setdefault("ranks", rank_results(of, blamed, others))
    return Outcome(FACTS.run_id, kind, exit_code, **fields)


def failed(kind, summary="", code=1, **more):
    return Cause(kind, summary, rank=1, node=0, exit_code=code, **more)


STALLED = tuple(dataclasses.replace(rank, stack_path="s") for rank in rank_results())
EXCEPTION = make(
    "failed",
    1,
    Cause(
        "exception",
        "ValueError: expected 64 observations, got 63",
        rank=5,
        node=0,
        exit_code=1,
        frames=FRAMES,
        log_tail=("step 18300  reward 0.412", "step 18310  reward 0.415"),
        detail={
            "checkpoint": "/p/ckpt/step-18000",
            "checkpoint_at": 39 * MINUTE,
            "again": "puffrun train --gpus 8 train.py --resume ckpt/step-18000",
        },
    ),
    of=8,
    hang=Hang(
        "", (Waiting((0, 1, 2, 3, 4, 6, 7), "all_reduce #54912 (nccl)", "trainer.py:57 in step"),)
    ),
    cleaned=(Process(1, "python (env worker)", 5), Process(2, "python (env worker)", 5)),
)

CASES = {
    "success": make("success", 0, None, of=8, others="ok", ended_at=134 * MINUTE),
    "success-with-leftovers-ended": make(
        "success", 0, None, of=1, others="ok", cleaned=(Process(7, "sleep", 0),)
    ),
    "success-after-a-restart": make(
        "success",
        0,
        None,
        others="ok",
        attempts=({"summary": "exited 7", "cause": {"rank": 2}}, {"summary": "success"}),
    ),
    "exception": EXCEPTION,
    "exception-from-its-text": make(
        "failed",
        1,
        failed(
            "exception",
            "KeyError: 'second'",
            traceback=TRACEBACK,
            log_tail=("step 7", *(f"[rank1]: {line}" for line in TRACEBACK.splitlines())),
        ),
        others="victim",
    ),
    "exception-with-causes": make(
        "failed",
        1,
        failed(
            "exception",
            "ExceptionGroup: many (2 sub-exceptions)",
            frames=FRAMES,
            detail={
                "related": [
                    {"relation": "member", "type": "ValueError", "message": "a\nb", "frames": []},
                    {"relation": "context", "type": "KeyError", "message": "", "frames": [{}]},
                    {
                        "relation": "cause",
                        "type": "ZeroDivisionError",
                        "message": "division by zero",
                        "frames": [dataclasses.asdict(frame) for frame in FRAMES],
                    },
                    "odd",
                ]
            },
        ),
    ),
    "exception-of-several-lines": make(
        "failed",
        1,
        failed("exception", "RuntimeError: CUDA error: misaligned address\nCompile with X\nSearch"),
    ),
    "exit": make(
        "failed", 7, failed("exit", "exited 7", code=7, log_tail=("bad flag --foo",)), of=2
    ),
    "sigsegv": make("failed", 139, failed("signal", "was killed by SIGSEGV", code=None, signal=11)),
    "sigkill": make("failed", 137, failed("signal", code=None, signal=9)),
    "sigabrt": make(
        "failed",
        134,
        failed(
            "signal",
            "aborted (SIGABRT): its peers sent more or less data than this collective expects",
            code=None,
            signal=6,
        ),
        others="victim",
    ),
    "real-time-signal": make("failed", 165, failed("signal", code=None, signal=37)),
    "oom": make(
        "failed",
        137,
        failed("oom", "was killed by the kernel: out of memory (SIGKILL)", code=None, signal=9),
    ),
    "oom-with-the-limit": make(
        "failed",
        137,
        failed("oom", "the cgroup's memory limit of 16 GiB was reached", code=None, signal=9),
    ),
    "oom-without-details": make("failed", 137, failed("oom", code=None, signal=9)),
    "early-exit": make("hung", 75, failed("early-exit", code=0), hang=Hang("", (WAITING,))),
    "early-exit-without-a-verdict": make("hung", 75, failed("early-exit", code=0), of=2),
    "early-exit-and-victims": make(
        "hung", 75, failed("early-exit", "exited 0", code=0), others="victim", victims=(0, 2, 3)
    ),
    "stopped-rank": make(
        "hung",
        75,
        failed("stall", "rank 1 is stopped (SIGSTOP), and no rank moved for 600 s", code=None),
    ),
    "dead-child": make(
        "hung",
        75,
        failed(
            "dead-child",
            "rank 1 runs on without its child process env worker (pid 4123), which was killed by"
            " SIGSEGV",
            code=None,
        ),
    ),
    "hang": make("hung", 75, Cause("stall", "no rank moved"), hang=VERDICT, ranks=STALLED),
    "hang-without-a-verdict": make("hung", 75, Cause("stall", "")),
    "disagreement": make(
        "disagreed",
        74,
        Cause(
            "disagreement",
            "DisagreementError: preflight: rank 1 differs from ranks 0, 2, 3\n"
            "  order      `b.weight` before `a.weight` on rank 1, after it on ranks 0, 2, 3"
            " (optimizer group 0)\n"
            "  nothing was changed; build the optimizer from `model.named_parameters()` in one"
            " order on all ranks",
        ),
        others="victim",
    ),
    "timeout": make("timeout", 124, Cause("timeout", "")),
    "timeout-with-a-verdict": make("timeout", 124, Cause("timeout", ""), hang=TOLD),
    "timeout-of-a-run-that-goes-on": make(
        "timeout", 124, Cause("timeout", ""), hang=Hang("all ranks are in it", (WAITING,))
    ),
    "ctrl-c": make("stopped", 130, Cause("stop", "", signal=2)),
    "sigterm": make("stopped", 143, Cause("stop", "stopped while building"), ranks=()),
    "artifact-failed": make(
        "artifact-failed",
        71,
        Cause(
            "build",
            "artifact `visualize` could not be built: `cc -O2 visualize.c` exited 1",
            log_tail=(
                "visualize.c:88:5: error: unknown type name \x1b[1m'Vec3'\x1b[0m",
                "   88 |     Vec3 origin;",
            ),
        ),
        ranks=(),
        artifacts=(
            ArtifactResult("env", "fresh", "", "ab", 0.0),
            ArtifactResult(
                "visualize", "failed", "", "cd", 1.3, None, "/p/.puffrun/artifacts/v/logs/5120.log"
            ),
        ),
    ),
    "launch-failed": make(
        "launch-failed",
        73,
        Cause(
            "agent-lost",
            "torchrun could not be started: no module named `torch`",
            log_tail=("Traceback", "ImportError"),
        ),
        ranks=(),
    ),
    "launch-failed-before-any-rank": make(
        "launch-failed",
        73,
        Cause("agent-lost", "UserWarning: Failed to initialize NumPy", log_tail=("Traceback",)),
        ranks=(RankResult(0, 0, 0, "killed"),),
    ),
    "agent-lost": make(
        "launch-failed", 73, Cause("agent-lost", "", signal=9, log_tail=("W1130 starting",)), of=2
    ),
    "leftovers": make(
        "launch-failed",
        73,
        Cause("agent-lost", ""),
        of=2,
        leftovers=(Process(4123, "python", 1, "D"),),
    ),
    "restarted": make(
        "failed",
        7,
        failed("exit", code=7),
        attempts=tuple({"summary": "exited 7", "cause": {"rank": rank}} for rank in (0, 3, 1)),
    ),
    "node": make("failed", 1, dataclasses.replace(failed("exception", "E: x"), rank=9, node=1)),
}
ON_NODES = {"node": dataclasses.replace(FACTS, nodes=2)}


def render_golden(name):
    facts = ON_NODES.get(name, FACTS)
    cards = []
    for width in WIDTHS:
        lines = render_card(CASES[name], facts, width)
        cards.append("".join(f"{line}\n" for line in (f"--- {width} columns", *lines)))
    return "".join(cards)


@pytest.mark.parametrize("name", CASES)
def test_the_card_is_as_agreed(name):
    assert render_golden(name) == (CARDS_DIR / f"{name}.txt").read_text(encoding="utf-8")


def test_every_golden_card_has_its_case():
    assert {path.stem for path in CARDS_DIR.iterdir()} == set(CASES)


@pytest.mark.parametrize("width", [40, 80, 132])
@pytest.mark.parametrize("name", CASES)
def test_every_card_keeps_to_about_twenty_lines(name, width):
    assert len(render_card(CASES[name], FACTS, width)) <= MAX_LINES


@pytest.mark.parametrize("name", CASES)
def test_colour_changes_no_word(name):
    plain = render_card(CASES[name], FACTS, 80)
    painted = render_card(CASES[name], FACTS, 80, paint=Paint(color=True))
    assert painted != plain
    codes = ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[36m")
    for code in codes:
        painted = [line.replace(code, "") for line in painted]
    assert painted == plain


def is_uncuttable(line):
    """Say whether a line holds what must be copied whole: a command or a path."""
    return line.startswith(
        ("    again: ", "    log", "    stacks ", "    report ", "    last check")
    )


FOREIGN = {
    "long": "x " * 2500,
    "long word": "y" * 5000,
    "unicode": "観測が足りません 🚗 " * 50,
    "escapes": "\x1b[2J\x1b]0;owned\x07 and \x9b31m and \r and \x00 and \u202e" * 20,
    "lines": "\n".join("line" for _ in range(5000)),
    "surrogates": "half \udce2\udc80 " * 10,
    "empty": "",
}


@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("kind", ["exception", "signal", "disagreement", "agent-lost", "stall"])
@pytest.mark.parametrize("text", FOREIGN.values(), ids=FOREIGN)
def test_no_foreign_text_breaks_a_card(text, kind, width):
    cause = Cause(
        kind,
        text,
        rank=3,
        signal=11,
        traceback=text,
        frames=tuple(Frame(f"/p/{text}", 1, text, text) for _ in range(30)),
        log_tail=(text,) * 40,
    )
    hang = Hang(text, (Waiting((0, 1), text, text),), (Missing((2,), text, text),))
    outcome = make("failed", 1, cause, hang=hang, cleaned=(Process(1, text, 3),) * 50)
    lines = render_card(outcome, FACTS, width)
    assert len(lines) <= MAX_LINES
    assert "\n".join(lines).encode()
    for line in lines:
        assert not any(
            ord(c) < 32 or 127 <= ord(c) < 160 or "\u2028" <= c <= "\u202e" for c in line
        )
        assert count_cells(line) <= width or is_uncuttable(line)


def test_64_ranks_in_64_places_are_summed_up():
    places = tuple(Waiting((r,), f"all_reduce #{r}", f"t.py:{r} in f") for r in range(1, 64))
    cause = Cause("exception", "E: x", rank=0, exit_code=1)
    lines = render_card(make("failed", 1, cause, of=64, hang=Hang("", places)), FACTS, 80)
    assert len(lines) <= MAX_LINES
    assert "    rank 1 was in all_reduce #1 at t.py:1 in f; ended by puffrun" in lines
    assert "    … and 60 more groups of ranks, see the report" in lines


def test_64_ranks_in_one_place_are_one_line():
    waiting = (Waiting((*range(13), *range(14, 64)), "barrier #2 (nccl)", "t.py:9 in f"),)
    cause = Cause("signal", "", rank=13, signal=11)
    outcome = make("failed", 139, cause, of=64, hang=Hang("", waiting))
    assert (
        "    ranks 0-12, 14-63 were in barrier #2 (nccl) at t.py:9 in f; ended by puffrun"
        in render_card(outcome, FACTS, 90)
    )


def test_output_that_is_nobodys_is_not_shown():
    cause = Cause("disagreement", "DisagreementError: preflight: differ", log_tail=("a line",))
    card = "\n".join(render_card(make("disagreed", 74, cause), FACTS, 90))
    assert "a line" not in card
    assert "None" not in card


def test_a_rank_that_was_missed_is_shown_where_it_was():
    cause = Cause("disagreement", "DisagreementError: barrier `save`: rank 2 did not come", rank=2)
    hang = Hang("", (), (Missing((2,), "t.py:4 in wait", "sleeps"),))
    card = render_card(make("disagreed", 74, cause, hang=hang), FACTS, 90)
    assert "    rank 2 was at t.py:4 in wait" in card


def test_what_lies_behind_is_told_before_where():
    place = Frame("/usr/lib/python3.11/multiprocessing/connection.py", 395, "_recv", "read()")
    related = [
        {
            "relation": "context",
            "type": "RuntimeError",
            "message": "DataLoader worker (pid 7) is killed by signal: Killed.",
            "frames": [dataclasses.asdict(place)],
        }
    ]
    cause = Cause("exception", "ValueError: x", rank=1, detail={"related": related})
    card = "\n".join(render_card(make("failed", 1, cause), FACTS, 140))
    assert "is killed by signal: Killed. (multiprocessing/connection.py:395)" in card


def test_a_program_that_is_an_installed_package_shows_its_own_frames():
    package = Frame(f"{SITE}/pufferlib/pufferl.py", 9, "train", "x()")
    plumbing = (FRAMES[0], FRAMES[2], FRAMES[4])
    assert pick_user_frames((*plumbing, package)) == (package,)
    assert pick_user_frames((FRAMES[1], package)) == (FRAMES[1],)
    assert pick_user_frames(plumbing) == plumbing
    assert pick_user_frames(()) == ()


def test_puffrun_is_plumbing_but_its_demo_is_a_program():
    import puffrun

    ours = Path(puffrun.__file__).parent
    hook = Frame(str(ours / "rank" / "hook.py"), 1, "run")
    demo = Frame(str(ours / "demo" / "train.py"), 2, "main")
    assert pick_user_frames((hook, demo, hook)) == (demo,)


def test_at_most_the_last_five_frames_are_shown():
    frames = tuple(Frame("/p/a.py", n, "f") for n in range(1000))
    assert [frame.line for frame in pick_user_frames(frames)] == [995, 996, 997, 998, 999]


TITLES = [
    ({}, "run 1130-1042-k7fqa  4 ranks on 4 GPUs (NVIDIA H100)  train.py"),
    ({"ranks_per_node": 1}, "run 1130-1042-k7fqa  1 rank on 1 GPU (NVIDIA H100)  train.py"),
    ({"nodes": 2}, "run 1130-1042-k7fqa  8 ranks on 8 GPUs (NVIDIA H100) of 2 nodes  train.py"),
    ({"on_gpus": False}, "run 1130-1042-k7fqa  4 ranks on the CPU  train.py"),
    ({"device_name": "", "program": ""}, "run 1130-1042-k7fqa  4 ranks on 4 GPUs"),
]


@pytest.mark.parametrize(("change", "title"), TITLES)
def test_the_first_line_of_a_run(change, title):
    assert render_title(dataclasses.replace(FACTS, **change)) == title


PLAN = LaunchPlan(
    run_id=FACTS.run_id,
    run_dir=FACTS.run_dir,
    state_dir=Path("/p/.puffrun"),
    root_dir=Path("/p"),
    argv=("python", "-u", "train.py"),
    program="train.py",
    cwd=Path("/p"),
    backend="nccl",
    ranks_per_node=4,
    nodes=1,
    node_rank=0,
    rdzv_endpoint=None,
    devices=("0", "1", "2", "3"),
    device_name="NVIDIA H100",
    env=(),
    env_set=(),
    env_ignored=(("PET_NNODES", "2"),),
    artifacts=(),
    grace_s=10.0,
    stall_timeout_s=600.0,
    exit_timeout_s=60.0,
    dead_child_timeout_s=5.0,
    timeout_s=7200.0,
    max_restarts=0,
    preload=False,
    show_ranks=(0,),
    again=FACTS.again,
)


def test_facts_are_the_same_from_a_plan_and_from_its_json():
    plan_json = json.loads(json.dumps(dataclasses.asdict(PLAN), default=str))
    facts = facts_from_json(plan_json, FACTS.run_id, FACTS.run_dir, Path("/p"))
    assert facts_of(PLAN, Path("/p")) == FACTS
    assert facts == dataclasses.replace(FACTS, report_command="")


def test_facts_survive_a_plan_that_is_none():
    facts = facts_from_json({"nodes": "x", "program": 7}, "r", Path("/r"), Path("/"))
    assert render_card(CASES["exit"], facts, 80)


class FakeStream:
    """A terminal that keeps what was written."""

    encoding = "utf-8"

    def __init__(self):
        self.text = ""

    def fileno(self):
        raise OSError

    def write(self, text):
        self.text += text

    def flush(self):
        pass


@pytest.fixture
def stream():
    return FakeStream()


def launch_screen(stream, *, tty):
    return LaunchScreen(Screen(stream, tty=tty, width=80), shown_from=Path("/p"))


def test_a_good_run_on_screen(stream):
    listener = launch_screen(stream, tty=False)
    listener.run_started(PLAN)
    for up in range(5):
        listener.ranks_starting(up, 4)
    listener.note("restart 1 of 2 in 1.0 s")
    listener.ended(make("success", 0, None, others="ok"), PLAN)
    assert stream.text.splitlines() == [
        "puffrun  run 1130-1042-k7fqa  4 ranks on 4 GPUs (NVIDIA H100)  train.py",
        "puffrun  ignored PET_NNODES=2 (left over from another launcher)",
        "puffrun  restart 1 of 2 in 1.0 s",
        "puffrun  done in 41 min  4 ranks exited 0  logs .puffrun/runs/1130-1042-k7fqa",
    ]


def test_starting_ranks_are_a_live_line(stream):
    listener = launch_screen(stream, tty=True)
    listener.ranks_starting(2, 4)
    listener.ranks_starting(4, 4)
    assert stream.text == "\r\x1b[2Kpuffrun  starting 4 ranks, 2 up\r\x1b[2K"


def test_the_end_starts_a_new_line_after_the_program_left_one_open(stream):
    listener = launch_screen(stream, tty=True)
    listener.output_ended(mid_line=True)
    listener.ended(make("success", 0, None, others="ok"), PLAN)
    assert stream.text.startswith("\npuffrun  done in 41 min")


@pytest.mark.parametrize(("tty", "start"), [(True, "\npuffrun  stopped"), (False, "puffrun  st")])
def test_the_end_starts_a_new_line_after_the_echo_of_ctrl_c(stream, tty, start):
    listener = launch_screen(stream, tty=tty)
    listener.output_ended(mid_line=False)
    listener.ended(CASES["ctrl-c"], PLAN)
    assert stream.text.startswith(start)


def test_a_failed_build_ends_in_the_error_only(stream):
    launch_screen(stream, tty=False).ended(CASES["artifact-failed"], PLAN)
    assert stream.text.splitlines() == [
        "error: artifact `visualize` could not be built: `cc -O2 visualize.c` exited 1",
        "hint: fix the source, then `puffrun build-artifacts visualize`",
    ]


if __name__ == "__main__":
    CARDS_DIR.mkdir(exist_ok=True)
    for case in CASES:
        (CARDS_DIR / f"{case}.txt").write_text(render_golden(case), encoding="utf-8")
