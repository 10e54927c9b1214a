"""Judging one rank's failure: is it a victim of another rank, how does it rank, what to call it."""

import re
import signal
from typing import Any

from puffrun.errors import ExitCode
from puffrun.naming import signal_name
from puffrun.outcome import Cause, ErrorRecord
from puffrun.watch.observations import RankView

# What a rank says when *another* one went away (gloo, NCCL, the store, monitored_barrier).
VICTIM_PATTERNS = re.compile(
    r"Connection closed by peer"
    r"|Connection reset by peer"
    r"|Connection refused"
    r"|Broken pipe"
    r"|Timed out waiting \d+ms for (send|recv) operation"
    r"|monitoredBarrier"
    r"|DistNetworkError|DistStoreError"
    r"|Failed to recv, got 0 bytes"
    r"|ncclRemoteError|remote process exited|NCCL communicator was aborted"
    r"|Watchdog caught collective operation timeout",
)
TIME_LIMIT_PATTERN = re.compile(
    r"Timed out waiting \d+ms for|failed to pass monitoredBarrier"
    r"|Watchdog caught collective operation timeout"
)
# gloo aborts the rank that receives more than it expects: two ranks disagree on a collective
MISMATCH_PATTERN = re.compile(
    r"EnforceNotMet.*op\.preamble\.length|distributed collective mismatch"
)

# the in-rank library's error; its text is the same on all ranks
DISAGREEMENT = "DisagreementError"
GONE_PATTERN = re.compile(r"^[^\n]*\branks? [-\d, …]+ (?:is|are) gone \(")
CULPRIT_PATTERN = re.compile(r"^[^\n]*?: rank (\d+) ")

OUR_ENDS = (-signal.SIGTERM, -signal.SIGKILL)


def looks_like_victim(view: RankView) -> bool:
    """Whether a failed rank only says that another one went away."""
    if disagrees(view):
        return True  # every rank says the same at the same time: let them all say it
    if view.error is not None:
        return bool(VICTIM_PATTERNS.search(f"{view.error.type}: {view.error.message}"))
    if view.returncode == -signal.SIGABRT:  # NCCL's watchdog aborts the ranks that wait
        text = "\n".join(view.log_tail)
        return bool(VICTIM_PATTERNS.search(text)) and not MISMATCH_PATTERN.search(text)
    if view.returncode is None or view.returncode < 0:
        return False
    return bool(VICTIM_PATTERNS.search("\n".join(view.log_tail[-15:])))


def ran_out_of_time(view: RankView) -> bool:
    """Whether a rank's collective waited for its own time limit."""
    told = view.error.message if view.error is not None else "\n".join(view.log_tail)
    return bool(TIME_LIMIT_PATTERN.search(told))


def disagrees(view: RankView) -> bool:
    """Whether the in-rank library found that the ranks must not go on together."""
    return view.error is not None and view.error.type == DISAGREEMENT


def misses_a_rank(view: RankView) -> bool:
    """Whether a disagreement only says that another rank is gone."""
    return view.error is not None and bool(GONE_PATTERN.match(view.error.message))


def find_culprit(view: RankView) -> int | None:
    """Find the one rank that a disagreement's first line is about, if it is about one."""
    named = CULPRIT_PATTERN.match(view.error.message) if view.error is not None else None
    return None if named is None else int(named[1])


def blame_key(view: RankView) -> tuple[int, int]:
    """Exceptions before signals before exit codes; within a kind the earliest."""
    if view.error is not None:
        return (0, view.error.at)
    kind = 1 if view.returncode is None or view.returncode < 0 else 2
    return (kind, view.ended_at or 0)


def exit_code_of(view: RankView) -> int:
    """Return the rank's own code, or 128+N.

    An exception is 1, also when the rank lingered after it and was killed by us; the in-rank
    library's is 74.
    """
    if disagrees(view) and view.returncode in (None, 1, *OUR_ENDS):
        return ExitCode.DISAGREED
    own = not view.exited_after_stop or view.returncode not in OUR_ENDS
    if view.exited and own and view.returncode:
        return view.returncode if view.returncode > 0 else 128 - view.returncode
    return 1


def describe_failure(view: RankView) -> Cause:
    """Describe one rank's own failure."""
    if view.error is not None:
        signum = _find_own_signal(view)
        return Cause(
            kind="disagreement" if disagrees(view) else "exception",
            summary=f"{view.error.type}: {view.error.message}".rstrip(": "),
            rank=view.rank,
            node=view.node,
            exit_code=exit_code_of(view) if signum is None else None,
            signal=signum,
            traceback=view.error.traceback,
            frames=view.error.frames,
            log_tail=view.log_tail,
            detail=_describe_error(view.error),
        )
    if view.returncode is not None and view.returncode < 0:
        return _describe_signal(view, -view.returncode)
    return Cause(
        kind="exit",
        summary=f"exited {view.returncode}",
        rank=view.rank,
        node=view.node,
        exit_code=view.returncode,
        log_tail=view.log_tail,
    )


def _find_own_signal(view: RankView) -> int | None:
    """Find the signal that a rank died of by itself, as Python does of a KeyboardInterrupt."""
    code = view.returncode
    is_ours = view.exited_after_stop and code in OUR_ENDS
    return -code if code is not None and code < 0 and not is_ours else None


def _describe_error(error: ErrorRecord) -> dict[str, Any]:
    detail: dict[str, Any] = {"type": error.type, "message": error.message}
    return detail | ({"related": list(error.related)} if error.related else {})


def _describe_signal(view: RankView, signum: int) -> Cause:
    name = signal_name(signum)
    summary = f"was killed by {name}"
    if view.oom:
        summary = f"was killed by the kernel: out of memory ({name})"
    elif signum == signal.SIGABRT and MISMATCH_PATTERN.search("\n".join(view.log_tail)):
        summary = f"aborted ({name}): its peers sent more or less data than this collective expects"
    return Cause(
        kind="oom" if view.oom else "signal",
        summary=summary,
        rank=view.rank,
        node=view.node,
        signal=signum,
        log_tail=view.log_tail,
    )
