"""`progress(step, **metrics)`: the heartbeat that the watchdog and `puffrun ps` read."""

import json
import operator
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from puffrun.heartbeat import MAX_METRICS_BYTES, HeartbeatPage
from puffrun.rundir import ENV_RUN_DIR, RunDir

MAX_STEP = 2**63 - 1


@dataclass
class _Heart:
    """This process's heart: how often it has beaten, and the page that shows it."""

    page: HeartbeatPage | None
    calls: int = 0


_hearts: list[_Heart] = []  # one, once there is one
os.register_at_fork(after_in_child=_hearts.clear)  # a fork of a rank is not the rank


def progress(step: int, **metrics: float) -> None:
    """Say that this rank moved: it is at `step`; `metrics` are a few numbers to show.

    Costs microseconds and no system call, so call it at each step. Metrics are plain numbers (a
    tensor on a GPU would have to wait for the GPU); beyond about 900 bytes they are left out.
    Without puffrun it only counts for those who wait at `run_once`.

    Raises:
        TypeError: `step` is no whole number, or a metric no number; with puffrun or without.
        ValueError: `step` does not fit into 64 bits.
    """
    number = _take_step(step)
    shown = {name: _take_metric(name, value) for name, value in metrics.items()}
    heart = _hearts[0] if _hearts else _make_heart()
    heart.calls += 1
    if heart.page is None:
        return
    encoded = json.dumps(shown).encode() if shown else b"{}"
    if len(encoded) > MAX_METRICS_BYTES:
        encoded = b"{}"
    heart.page.write(heart.calls, time.time_ns(), number, encoded)


def _take_step(step: int) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"progress: step has to be a whole number, not {step!r:.80}") from None
    if not -MAX_STEP - 1 <= number <= MAX_STEP:
        raise ValueError("progress: step has to fit into 64 bits")
    return number


def _take_metric(name: str, value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # torch has the last
        raise TypeError(f"progress: metric `{name}` has to be a number: {error}") from None


def count_calls() -> int:
    """Count this process's calls of `progress` so far."""
    return _hearts[0].calls if _hearts else 0


def _make_heart() -> _Heart:
    """Open this rank's page. A process that a rank started has none: it is not the rank."""
    run_dir, rank = os.environ.get(ENV_RUN_DIR), os.environ.get("RANK")
    page = None
    is_rank = os.environ.get("PUFFRUN_AGENT_PID") == str(os.getppid())
    if run_dir is not None and rank is not None and is_rank:
        try:
            page = HeartbeatPage(RunDir(Path(run_dir)).heartbeat_path(int(rank)), int(rank))
        except OSError as error:  # the run matters more than its heartbeat
            sys.stderr.write(f"puffrun: no heartbeat of rank {rank}: {error}\n")
    _hearts[:] = [_Heart(page)]
    return _hearts[0]
