"""Is a long piece of work going on? Then those who wait for it wait on.

Work is what design calls progress: `progress()` was called, or this process and everything below
it (a compiler) spent CPU time. A section that merely sleeps shows neither, and runs into the
deadline of those who wait.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from puffrun.library.progress import count_calls

MIN_BEAT_S, MAX_BEAT_S = 0.02, 15.0
BUSY_SHARE = 0.02  # of one core
LEAVE_S = 5.0


@contextmanager
def telling_effort(tell: Callable[[int], None], timeout_s: float) -> Iterator[None]:
    """While the block works, call `tell` with a growing number, several times in `timeout_s`."""
    done = threading.Event()
    beat_s = min(MAX_BEAT_S, max(MIN_BEAT_S, timeout_s / 4))
    thread = threading.Thread(target=_watch, args=(done, beat_s, tell), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(LEAVE_S)


def _watch(done: threading.Event, beat_s: float, tell: Callable[[int], None]) -> None:
    beats, last = 0, _measure()
    while not done.wait(beat_s):
        now = _measure()
        if now[0] != last[0] or now[1] - last[1] > BUSY_SHARE * beat_s:
            beats += 1
            tell(beats)
        last = now


def _measure() -> tuple[int, float]:
    """Return how often `progress()` was called, and CPU seconds spent here and below.

    What looking costs is left out: with many processes on a machine it is milliseconds.
    """
    me = psutil.Process()
    times = me.cpu_times()  # of ourselves it is too coarse: it counts in hundredths of a second
    cpu_s = time.process_time() - time.thread_time() + times.children_user + times.children_system
    for child in me.children(recursive=True):
        try:
            below = child.cpu_times()
        except psutil.Error:  # it has ended; its time is in its parent's soon
            continue
        cpu_s += below.user + below.system + below.children_user + below.children_system
    return count_calls(), cpu_s
