"""The heartbeat: what a reader sees, whenever it looks and whatever happened to the writer."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from harness import clean_environ

from puffrun.heartbeat import SIZE, SLOTS, HeartbeatPage, read_heartbeat

WRITE_FOR_EVER = """
import sys
from pathlib import Path
from puffrun.heartbeat import HeartbeatPage
page = HeartbeatPage(Path(sys.argv[1]), 3)
calls = 0
while True:
    calls += 1
    page.write(calls, calls, -calls, b'{"a": %d, "b": "%s"}' % (calls, b"x" * (calls % 800)))
    if calls == 10:
        print("writing", flush=True)
"""


def test_a_page_tells_the_newest(tmp_path):
    path = tmp_path / "ranks" / "rank-3.beat"
    assert read_heartbeat(path) is None
    page = HeartbeatPage(path, 3)
    assert read_heartbeat(path) is None, "no progress yet"
    for calls in range(1, 6):
        page.write(calls, 1000 + calls, -calls, json.dumps({"loss": calls / 2}).encode())
        beat = read_heartbeat(path)
        assert beat is not None
        assert (beat.rank, beat.pid, beat.calls) == (3, os.getpid(), calls)
        assert (beat.at, beat.step, beat.metrics) == (1000 + calls, -calls, {"loss": calls / 2})


@pytest.mark.parametrize("at", [0, 8, 20, 28, 33])
def test_a_torn_slot_leaves_the_other(tmp_path, at):
    page = HeartbeatPage(tmp_path / "beat", 0)
    page.write(1, 1, 10, b'{"a": 1}')
    page.write(2, 2, 20, b'{"a": 2}')
    data = bytearray((tmp_path / "beat").read_bytes())
    data[SLOTS[0] + at] ^= 0xFF  # the second call's slot
    (tmp_path / "beat").write_bytes(data)
    beat = read_heartbeat(tmp_path / "beat")
    assert beat is not None
    assert (beat.calls, beat.step, beat.metrics) == (1, 10, {"a": 1})


@pytest.mark.parametrize("data", [b"", b"x" * SIZE, bytes(SIZE), b"PUFFBEAT" + bytes(100)])
def test_what_is_no_page_has_no_heartbeat(tmp_path, data):
    (tmp_path / "beat").write_bytes(data)
    assert read_heartbeat(tmp_path / "beat") is None


def test_a_reader_never_sees_a_torn_record_and_a_killed_writer_leaves_a_whole_one(tmp_path):
    path = tmp_path / "beat"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, path], stdout=subprocess.PIPE, env=clean_environ()
    )
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        seen, deadline = set(), time.monotonic() + 60.0
        while len(seen) < 100 and time.monotonic() < deadline:
            beat = read_heartbeat(path)
            if beat is not None:  # both slots were overwritten while it was read
                assert beat.at == -beat.step == beat.metrics["a"] == beat.calls
                assert beat.metrics["b"] == "x" * (beat.calls % 800)
                seen.add(beat.calls)
        assert len(seen) == 100
        writer.send_signal(signal.SIGKILL)
        writer.wait(10)
        assert read_heartbeat(path) is not None
    finally:
        writer.kill()
        writer.communicate(timeout=10)


PROGRAM = """
import os
from puffrun import progress
from puffrun.library.progress import count_calls
progress(1, loss=0.5, reward=float("nan"))
progress(7, **{f"metric {i}": i for i in range(200)})
if os.fork() == 0:
    progress(99)  # not the rank
    os._exit(0)
os.wait()
progress(8, x=1)
assert count_calls() == 3
"""


def test_progress_writes_the_ranks_own_page(tmp_path):
    environ = clean_environ(
        PUFFRUN_RUN_DIR=str(tmp_path), RANK="2", PUFFRUN_AGENT_PID=str(os.getpid())
    )
    subprocess.run([sys.executable, "-c", PROGRAM], env=environ, check=True, timeout=60)
    beat = read_heartbeat(tmp_path / "ranks" / "rank-2.beat")
    assert beat is not None
    assert (beat.rank, beat.step, beat.calls, beat.metrics) == (2, 8, 3, {"x": 1.0})


ODD = """
from puffrun import progress
for arguments, kind, text in (
    ({"step": 1.5}, TypeError, "progress: step has to be a whole number, not 1.5"),
    ({"step": "e3"}, TypeError, "progress: step has to be a whole number, not 'e3'"),
    ({"step": 2**70}, ValueError, "progress: step has to fit into 64 bits"),
    ({"step": 1, "loss": "abc"}, TypeError, "progress: metric `loss` has to be a number"),
    ({"step": 1, "loss": None}, TypeError, "progress: metric `loss` has to be a number"),
    ({"step": 1, "loss": 1j}, TypeError, "progress: metric `loss` has to be a number"),
    ({"step": 1, "loss": 10**400}, TypeError, "progress: metric `loss` has to be a number"),
):
    try:
        progress(**arguments)
    except kind as error:
        assert str(error).startswith(text), error
    else:
        raise AssertionError(arguments)
progress(-(2**63))
progress(True, loss="1.5")
"""


@pytest.mark.parametrize("under_puffrun", [True, False])
def test_what_is_no_number_is_refused_everywhere_alike(tmp_path, under_puffrun):
    own = {"PUFFRUN_RUN_DIR": str(tmp_path), "RANK": "0", "PUFFRUN_AGENT_PID": str(os.getpid())}
    environ = clean_environ(**(own if under_puffrun else {}))
    subprocess.run([sys.executable, "-c", ODD], env=environ, check=True, timeout=60)
    beat = read_heartbeat(tmp_path / "ranks" / "rank-0.beat")
    assert (beat is not None) == under_puffrun


def test_a_run_directory_that_is_gone_costs_the_heartbeat_only(tmp_path):
    environ = clean_environ(
        PUFFRUN_RUN_DIR=str(tmp_path / "gone"), RANK="0", PUFFRUN_AGENT_PID=str(os.getpid())
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environ, check=True, timeout=60, capture_output=True
    )
    assert done.stderr.startswith(b"puffrun: no heartbeat of rank 0: ")
