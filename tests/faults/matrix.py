"""The fault matrix: one table, a row a fault. Add a row when a fault is found, for its whole kind.

`do` acts on the live run once every rank has printed its first line; without it the program does
the fault by itself. Every row is also checked for what is true of all: the run ended within its
limit, nothing of it is alive, report.json is valid, and the logs are complete.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from harness import Run, wait_for

from puffrun.process import find_stat, read_stats, send_signal


@dataclass(frozen=True)
class Fault:
    name: str
    program: str
    exit_code: int
    kind: str | None
    rank: int | None = None
    ranks: int = 2
    options: tuple[str, ...] = ()
    do: Callable[[Run], None] | None = None
    victims: tuple[int, ...] | None = None
    says: str = ""  # what the card has to say


def send(signum: int, *, burst: int = 1, then: int = 0) -> Callable[[Run], None]:
    """Signal the launcher; the kernel may merge a burst; `then` as many once it has obeyed."""

    def do(run: Run) -> None:
        for _ in range(burst):
            run.signal(signum)
        if then:
            wait_for(lambda: run.events("stop"), "the launcher to stop the run")
        for _ in range(then):
            run.signal(signum)

    return do


def kill_rank(rank: int, signum: int = signal.SIGKILL) -> Callable[[Run], None]:
    return lambda run: os.kill(run.rank_pid(rank), signum)


def kill_guardian(run: Run) -> None:
    os.kill(run.guardian_pid(), signal.SIGKILL)


def kill_agent(run: Run) -> None:
    os.kill(run.agent_pid(), signal.SIGKILL)


def kill_zygote(run: Run) -> None:
    os.kill(run.zygote_pid(), signal.SIGKILL)


def stop_guardian_then_kill_rank(run: Run) -> None:
    os.kill(run.guardian_pid(), signal.SIGSTOP)  # it never answers again
    os.kill(run.rank_pid(0), signal.SIGKILL)


def stop_zygote_and_kill_rank(run: Run) -> None:
    """A stopped zygote can report nothing."""
    os.kill(run.zygote_pid(), signal.SIGSTOP)
    os.kill(run.rank_pid(1), signal.SIGKILL)


def stop_agent_then_kill_rank(run: Run) -> None:
    os.kill(run.agent_pid(), signal.SIGTERM)  # ignored: it is ended by SIGKILL only
    os.kill(run.rank_pid(0), signal.SIGKILL)


def kill_two_at_once(run: Run) -> None:
    pids = [run.rank_pid(1), run.rank_pid(2)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def polite_then_kill(run: Run) -> None:
    """A rank's own child dies; that is the rank's affair. Then the rank is killed."""
    rank = run.rank_pid(1)
    for stat in read_stats().values():
        if stat.ppid == rank:
            send_signal(stat, signal.SIGTERM)
    assert find_stat(rank) is not None
    os.kill(rank, signal.SIGKILL)


def stop_agent_and_kill_rank(run: Run) -> None:
    """A stopped agent can report nothing."""
    os.kill(run.agent_pid(), signal.SIGSTOP)
    os.kill(run.rank_pid(1), signal.SIGKILL)


QUICK = ("--grace", "1")
PATIENT = ("--grace", "3600")
EARLY = ("--exit-timeout", "1", *QUICK)

FAULTS = [
    # a rank raises
    Fault("raise", "fail.py 1 raise", 1, "exception", 1, says="ValueError: expected 64 obs"),
    Fault("raise-rank-0", "fail.py 0 raise", 1, "exception", 0),
    Fault("raise-one-rank", "fail.py 0 raise", 1, "exception", 0, ranks=1),
    Fault("raise-of-4", "fail.py 3 raise", 1, "exception", 3, ranks=4),
    Fault("raise-of-8", "fail.py 6 raise", 1, "exception", 6, ranks=8),
    Fault(
        "raise-chained",
        "fail.py 1 raise_chained",
        1,
        "exception",
        1,
        says="caused by: KeyError: 'inner' (",
    ),
    Fault(
        "raise-group", "fail.py 1 raise_group", 1, "exception", 1, says="in the group: TypeError: b"
    ),
    Fault("raise-with-thread", "fail.py 1 raise_with_thread", 1, "exception", 1, options=QUICK),
    Fault("raise-with-atexit", "fail.py 1 raise_with_atexit", 1, "exception", 1, options=QUICK),
    Fault(
        "raise-without-files",
        "fail.py 1 raise_without_files",
        1,
        "exception",
        1,
        says="Too many open files",
    ),
    Fault("raise-of-worker", "fail.py 1 raise_of_worker", 1, "exception", 1, says="'bad sample'"),
    Fault(
        "raise-redrawn",
        "fail.py 1 raise_redrawn",
        1,
        "exception",
        1,
        says="rank 1 failed: RuntimeError: step 10",
    ),
    Fault(
        "raise-unrecorded",
        "fail.py 1 raise_unrecorded",
        1,
        "exit",
        1,
        says="rank 1 exited 1, and why could not be recorded: [Errno 2]",
    ),
    Fault(
        "collective-runs-out-of-time",
        "collective.py 2 sleep 3",
        75,
        "stall",
        2,
        4,
        victims=(0, 1, 3),
        says="hang: rank 2 did not come, and the time limit of all_reduce",
        options=QUICK,
    ),
    Fault("raise-own-hook", "fail.py 1 raise_with_own_hook", 1, "exception", 1),
    Fault("raise-bad-str", "fail.py 1 raise_bad_str", 1, "exception", 1),
    Fault("raise-huge-message", "fail.py 1 raise_huge", 1, "exception", 1),
    Fault("raise-unicode", "fail.py 1 raise_unicode", 1, "exception", 1),
    Fault("keyboard-interrupt", "fail.py 1 keyboard", 130, "exception", 1),
    # a rank exits
    Fault("exit-1", "fail.py 1 exit1", 1, "exit", 1),
    Fault("exit-7", "fail.py 1 exit7", 7, "exit", 1, says="exited 7"),
    Fault("exit-255", "fail.py 0 exit255", 255, "exit", 0),
    Fault("exit-with-text", "fail.py 1 exit_text", 1, "exit", 1, says="cannot go on"),
    Fault("exit-0-early", "fail.py 1 exit0", 75, "early-exit", 1, options=EARLY),
    Fault("os-exit-0-early", "fail.py 0 os_exit0", 75, "early-exit", 0, ranks=4, options=EARLY),
    # a rank is killed by a signal
    Fault("sigkill", "fail.py 1 sigkill", 137, "signal", 1, says="SIGKILL"),
    Fault("sigkill-of-8", "fail.py 7 sigkill", 137, "signal", 7, ranks=8),
    Fault("sigterm", "fail.py 1 sigterm", 143, "signal", 1),
    Fault("sigint", "fail.py 1 sigint", 130, "exception", 1),
    Fault("segfault", "fail.py 1 segfault", 139, "signal", 1, says="SIGSEGV"),
    Fault("abort", "fail.py 0 abort", 134, "signal", 0, says="SIGABRT"),
    Fault("sigkill-from-outside", "stay.py", 137, "signal", 1, do=kill_rank(1)),
    Fault("sigbus-from-outside", "stay.py", 135, "signal", 0, do=kill_rank(0, signal.SIGBUS)),
    Fault("two-at-once", "stay.py", 137, "signal", None, ranks=4, do=kill_two_at_once),
    Fault("sigkill-children-left", "stay.py children", 137, "signal", 1, do=kill_rank(1)),
    Fault("polite-child-end", "stay.py children", 137, "signal", 1, do=polite_then_kill),
    # what a rank leaves behind
    Fault("child-in-new-session", "fail.py 1 leave_child_in_session", 3, "exit", 1),
    Fault("double-fork", "fail.py 1 leave_double_fork", 3, "exit", 1, options=QUICK),
    Fault("cleared-environment", "fail.py 1 leave_cleared_environment", 3, "exit", 1),
    Fault("fork-while-dying", "fail.py 1 fork_while_dying", 3, "exit", 1, options=QUICK),
    Fault("left-after-success", "stay.py children finish", 0, None, options=QUICK),
    Fault("ignore-sigterm", "fail.py 1 exit7 ignore-sigterm", 7, "exit", 1, options=QUICK),
    Fault("ignore-sigterm-8", "fail.py 1 raise ignore-sigterm", 1, "exception", 1, 8, QUICK),
    # collectives: the peers of the culprit fail too, and must not be blamed
    Fault(
        "peer-raises", "collective.py 1 raise", 1, "exception", 1, ranks=4, says="the true cause"
    ),
    Fault("peer-raises-0", "collective.py 0 raise", 1, "exception", 0, ranks=2),
    Fault("peer-cleans-up", "collective.py 1 raise-then-clean-up", 1, "exception", 1, ranks=4),
    Fault("peer-lingers", "collective.py 0 raise-with-thread", 1, "exception", 0, options=QUICK),
    Fault("peer-exits-0", "collective.py 1 exit0", 75, "early-exit", 1, ranks=3),
    Fault("peer-os-exits-0", "collective.py 0 os-exit0", 75, "early-exit", 0, ranks=3),
    Fault("peer-killed", "collective.py 1 sigkill", 137, "signal", 1, ranks=4),
    Fault("peer-exits-5", "collective.py 1 catch-and-exit", 5, "exit", 1, ranks=2),
    Fault("shape-mismatch", "collective.py 1 other-shape", 134, "signal", None, ranks=2),
    # quiet failures
    Fault(
        "env-worker-segv",
        "env_worker.py segv",
        75,
        "dead-child",
        1,
        says="SIGSEGV",
        options=("--dead-child-timeout", "1", *QUICK),
    ),
    Fault(
        "env-worker-exit-3",
        "env_worker.py exit3",
        75,
        "dead-child",
        1,
        says="exited 3",
        options=("--dead-child-timeout", "1", *QUICK),
    ),
    Fault(
        "env-worker-ends-well",
        "env_worker.py exit0",
        0,
        None,
        options=("--dead-child-timeout", "1", *QUICK),
    ),
    Fault("stall", "stay.py", 75, "stall", None, options=("--stall-timeout", "3", *QUICK)),
    Fault(
        "sigstop",
        "stay.py",
        75,
        "stall",
        1,
        options=("--stall-timeout", "3", *QUICK),
        do=kill_rank(1, signal.SIGSTOP),
        says="SIGSTOP",
    ),
    Fault("timeout", "stay.py", 124, "timeout", None, options=("--timeout", "4", *QUICK)),
    Fault(
        "timeout-ignore-sigterm",
        "stay.py ignore-sigterm",
        124,
        "timeout",
        None,
        4,
        ("--timeout", "4", *QUICK),
    ),
    # puffrun is told to stop
    Fault("ctrl-c", "stay.py", 130, "stop", do=send(signal.SIGINT)),
    Fault(
        "ctrl-c-twice",
        "stay.py ignore-sigterm",
        130,
        "stop",
        options=PATIENT,
        do=send(signal.SIGINT, then=1),
    ),
    Fault(
        "ctrl-c-3",
        "stay.py ignore-sigterm",
        130,
        "stop",
        None,
        4,
        options=PATIENT,
        do=send(signal.SIGINT, then=2),
    ),
    Fault(
        "ctrl-c-10",
        "stay.py ignore-sigterm",
        130,
        "stop",
        options=QUICK,
        do=send(signal.SIGINT, burst=10),
    ),
    Fault(
        "ctrl-c-in-the-end-of-a-stall",
        "stay.py ignore-sigterm",
        75,
        "stall",
        options=("--stall-timeout", "3", *PATIENT),
        do=send(signal.SIGINT, burst=0, then=1),
    ),
    Fault("sigterm-launcher", "stay.py children", 143, "stop", do=send(signal.SIGTERM)),
    Fault("ctrl-backslash", "stay.py", 131, "stop", do=send(signal.SIGQUIT)),
    Fault("sighup-launcher", "stay.py", 129, "stop", do=send(signal.SIGHUP)),
    Fault("told-to-stop-exits-0", "stay.py exit0-on-sigterm", 143, "stop", do=send(signal.SIGTERM)),
    Fault(
        "ctrl-c-in-collective",
        "collective.py 9 never",
        130,
        "stop",
        None,
        4,
        do=send(signal.SIGINT),
    ),
    # odd programs
    Fault("flood", "quirks.py flood", 7, "exit", 1, options=QUICK),
    Fault("own-json", "shadows/train.py", 1, "exception", says="the true cause", options=QUICK),
    Fault("raise-after-raise", "quirks.py raise_one_after_the_other", 1, "exception", 1),
    Fault("nccl-aborts-victim", "quirks.py abort_like_nccl", 3, "exit", 1, victims=(0,)),
    Fault("victim-long-before", "quirks.py fail_late", 1, "exception", 1, victims=(0,)),
    Fault("first-thread-gone", "quirks.py outlive_first_thread", 3, "exit", 1, options=QUICK),
    Fault("native-thread-raises", "quirks.py native_thread_raises", 0, None),
    # puffrun's own processes are killed
    Fault(
        "agent-killed",
        "stay.py children",
        73,
        "agent-lost",
        do=kill_agent,
        says="the torchrun agent was killed by SIGKILL before its ranks",
        options=QUICK,
    ),
    Fault("guardian-killed", "stay.py children", 73, "agent-lost", do=kill_guardian, options=QUICK),
    Fault(
        "guardian-stopped",
        "stay.py children",
        137,
        "signal",
        0,
        do=stop_guardian_then_kill_rank,
        options=QUICK,
    ),
    Fault("agent-stopped", "stay.py", 137, "signal", 1, options=QUICK, do=stop_agent_and_kill_rank),
    Fault("agent-sigterm", "stay.py", 137, "signal", 0, do=stop_agent_then_kill_rank),
]

# --preload only: the process that ranks are forked from
ZYGOTE_FAULTS = [
    Fault(
        "zygote-stopped", "stay.py", 137, "signal", 1, options=QUICK, do=stop_zygote_and_kill_rank
    ),
    Fault("zygote-killed", "stay.py children", 73, "agent-lost", do=kill_zygote, options=QUICK),
    Fault(
        "zygote-killed-of-8",
        "stay.py ignore-sigterm",
        73,
        "agent-lost",
        ranks=8,
        do=kill_zygote,
        options=QUICK,
        says="ranks are forked from was killed",
    ),
]

# what the mode that is not the default is tried with in `make test`; `make faults` tries all
CORE = {
    "raise", "raise-of-8", "raise-with-thread", "raise-own-hook", "keyboard-interrupt", "exit-7",
    "exit-with-text", "exit-0-early", "sigkill", "sigint", "segfault", "child-in-new-session",
    "left-after-success", "peer-raises", "env-worker-segv", "sigstop", "ctrl-c", "agent-killed",
}  # fmt: skip


def choose_cases(*, everything: bool) -> list[tuple[str, Fault]]:
    """Pair rows with modes: each row in the default mode, some or all in the other too."""
    default = [("--preload", fault) for fault in (*FAULTS, *ZYGOTE_FAULTS)]
    other = [("--no-preload", f) for f in FAULTS if everything or f.name in CORE]
    return [*default, *other]
