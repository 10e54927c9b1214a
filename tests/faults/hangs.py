"""The hang matrix: a row a way to hang, with an unmodified program on 4 ranks.

A row says which ranks wait in what and at which line, who is missing and where, and who is the
odd one out. A line is named by the function and the text that stands there, so that a row does
not change when the program does.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import PROGRAMS, Run, wait_for

PROGRAM = PROGRAMS / "hang_cases.py"
ALL = "(gloo, all ranks)"
Row = tuple[tuple[int, ...], str, str]  # ranks, what, place: `function: text`


@dataclass(frozen=True)
class HangCase:
    """`missing` rows hold what the rank does; `rank` is the report's `cause.rank`."""

    name: str
    waiting: tuple[Row, ...]
    missing: tuple[Row, ...] = ()
    culprits: tuple[int, ...] = (1,)
    says: str = ""
    exit_code: int = 75
    kind: str = "stall"
    rank: int | None = 1
    options: tuple[str, ...] = ("--stall-timeout", "3")
    do: Callable[[Run], None] | None = None


def stop_rank_1(run: Run) -> None:
    pid = run.rank_pid(1)  # it has started, so it has a log
    wait_for(lambda: "steps" in run.log(1), "rank 1 to take its steps")
    os.kill(pid, signal.SIGSTOP)


def others_reduce(number: int = 4) -> tuple[Row, ...]:
    return (((0, 2, 3), f"all_reduce #{number} {ALL}", "reduce: dist.all_reduce"),)


def rank_1(doing: str, place: str, last: str = "all_reduce #3") -> tuple[Row, ...]:
    return (((1,), f"is not in it; its last was {last}\n{doing}", place),)


CASES = (
    HangCase(
        "skip_barrier",
        (
            ((0, 2, 3), f"barrier #4 {ALL}", "skip_barrier: dist.barrier"),
            ((1,), f"all_reduce #4 {ALL}", "reduce: dist.all_reduce"),
        ),
        says="the ranks disagree: they wait at different operations",
    ),
    HangCase(
        "barrier_of_rank_0",
        (
            ((1, 2, 3), f"all_reduce #4 {ALL}", "reduce: dist.all_reduce"),
            ((0,), f"barrier #4 {ALL}", "barrier_of_rank_0: dist.barrier"),
        ),
        culprits=(0,),
        rank=0,
    ),
    HangCase(
        "barrier_too_many",
        (((2,), f"barrier #5 {ALL}", "barrier_too_many:     dist.barrier"),),
        (
            (
                (0, 1, 3),
                "are not in it; their last was barrier #4\nwait for a lock",
                "barrier_too_many: threading.Event",
            ),
        ),
        culprits=(2,),
        rank=2,
    ),
    HangCase(
        "broadcast_against_all_reduce",
        (
            ((0, 1, 2), f"all_reduce #4 {ALL}", "reduce: dist.all_reduce"),
            ((3,), f"broadcast #4 {ALL}", "broadcast_against_all_reduce: dist.broadcast"),
        ),
        culprits=(3,),
        rank=3,
    ),
    HangCase(
        "other_shape",
        (
            ((0, 2, 3), f"barrier #5 {ALL}", "other_shape: dist.barrier"),
            ((1,), f"all_reduce #4 {ALL}", "other_shape: dist.all_reduce"),
        ),
        says="#4 is all_reduce of [8] on rank 1, but it was all_reduce of [4] on ranks 0, 2",
    ),
    HangCase(
        "c_sleep_with_gil",
        others_reduce(),
        rank_1("holds the GIL in native code (sleep)", "save_in_c: ctypes"),
    ),
    HangCase("python_loop", others_reduce(), rank_1("sleeps", "python_loop: time.sleep")),
    HangCase(
        "busy_loop",
        others_reduce(),
        rank_1("computes", "busy_loop: pass|while"),
        exit_code=124,
        kind="timeout",
        rank=None,
        options=("--timeout", "15"),
    ),
    HangCase("lock", others_reduce(), rank_1("waits for a lock", "lock: held.acquire")),
    HangCase("queue_get", others_reduce(), rank_1("waits in queue.get", "queue_get: queue.Queue")),
    HangCase(
        "child_process",
        others_reduce(),
        rank_1("waits for a child process: sleep (pid ", "child_process: subprocess.run"),
    ),
    HangCase(
        "stopped",
        others_reduce(),
        (((1,), "is stopped (SIGSTOP)", "stopped: time.sleep|while"),),
        says="SIGSTOP",
        do=stop_rank_1,
    ),
    HangCase(
        "sub_group",
        (
            ((2, 3), f"all_reduce #4 {ALL}", "reduce: dist.all_reduce"),
            ((0,), "barrier #1 (gloo, group of ranks 0, 1)", "sub_group: dist.barrier"),
        ),
        (
            (
                (1,),
                "is in none of them; its last was all_reduce #3\nsleeps",
                "sub_group: time.sleep",
            ),
        ),
    ),
    HangCase(
        "unused_parameter",
        (
            ((0, 2, 3), f"all_reduce #7 {ALL}", "unused_parameter: model("),
            ((1,), f"barrier #7 {ALL}", "unused_parameter: dist.barrier"),
        ),
    ),
    HangCase(
        "returned_early",
        (((0, 2, 3), "all_reduce", "reduce: dist.all_reduce"),),
        (((1,), "exited 0", ""),),
        kind="early-exit",
        says="rank 1 exited 0 while ranks 0, 2, 3 were still running",
    ),
    HangCase(
        "before_init",
        (((0, 2, 3), "init_process_group", "<module>: dist.init_process_group"),),
        (((1,), "is not in it; it has been in none yet\nsleeps", "<module>: time.sleep"),),
    ),
    HangCase(
        "asynchronous",
        others_reduce(5),
        rank_1("sleeps", "asynchronous: time.sleep", "all_reduce #4"),
    ),
)


def find_places(place: str) -> set[str]:
    """Turn `function: text` into every `file:line in function` at which the text stands."""
    if not place:
        return {""}
    function, _, texts = place.partition(": ")
    lines = Path(PROGRAM).read_text().splitlines()
    start = 'if __name__ == "__main__"' if function == "<module>" else f"def {function}("
    first = next(n for n, line in enumerate(lines) if line.startswith(start))
    found = set()
    for number, line in enumerate(lines[first + 1 :], first + 2):
        if line and not line.startswith(" "):
            break
        if any(text in line for text in texts.split("|")):
            found.add(f"{PROGRAM.name}:{number} in {function}")
    return found
