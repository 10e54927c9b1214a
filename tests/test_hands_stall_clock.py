"""When is a run still? Asked of real processes that are no ranks: they sleep or compute."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import wait_for

from puffrun.hands.stall_clock import StallClock
from puffrun.process import read_stats
from puffrun.rundir import RunDir

SLEEP = "import time\nprint(flush=True)\ntime.sleep(600)"
COMPUTE = "print(flush=True)\nwhile True: pass"


@contextmanager
def process_of(text: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_process_that_sleeps_is_still_but_not_by_one_pulse(tmp_path: Path) -> None:
    clock = StallClock(RunDir(tmp_path), limit_s=3.0)
    with process_of(SLEEP) as pid:
        wait_for(lambda: read_stats()[pid].state == "S", "it to sleep")
        seen = [clock.observe({0: pid}, read_stats(), now) for now in (10.0, 13.5, 14.6)]
    assert seen[:2] == [None, None]
    assert seen[2] is not None


def test_one_that_computes_is_not(tmp_path: Path) -> None:
    clock = StallClock(RunDir(tmp_path), limit_s=1.5)
    with process_of(COMPUTE) as pid:
        began = time.monotonic()

        def look() -> bool:
            now = time.monotonic()
            assert clock.observe({0: pid}, read_stats(), now) is None
            return now - began > 3.5

        wait_for(look, "3.5 s")


def test_pulses_of_before_a_pause_say_nothing(tmp_path: Path) -> None:
    clock = StallClock(RunDir(tmp_path), limit_s=3.0)
    with process_of(SLEEP) as pid:
        wait_for(lambda: read_stats()[pid].state == "S", "it to sleep")
        seen = [clock.observe({0: pid}, read_stats(), now) for now in (10.0, 11.0, 12.0)]
        clock.shift(100.0)
        seen += [clock.observe({0: pid}, read_stats(), now) for now in (113.5, 114.6)]
    assert seen[:4] == [None] * 4
    assert seen[4] is not None
