import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from harness import wait_for

from puffrun.diagnose import Lateness, add_lateness
from puffrun.diagnose.doing import describe_doing
from puffrun.diagnose.places import render_place, split_at_user
from puffrun.evidence import (
    NativeState,
    Pulse,
    RankEvidence,
    ThreadStack,
    collect_evidence,
    parse_faulthandler,
    parse_flight_record,
    parse_py_spy,
    read_crash_frames,
    read_pulse,
)
from puffrun.evidence.asking import NoAnswerError, ask
from puffrun.evidence.collect import find_py_spy
from puffrun.evidence.flight_records import (
    Collective,
    FlightRecord,
    Journal,
    parse_counters,
    read_journal,
)
from puffrun.evidence.kernel import read_native_state
from puffrun.outcome import Frame
from puffrun.process import read_stats
from puffrun.rundir import RunDir

RECORD = json.dumps(
    {
        "entries": [
            {
                "process_group": ["0", "default_pg"],
                "profiling_name": "gloo:all_reduce",
                "collective_seq_id": 5,
                "p2p_seq_id": 0,
                "is_p2p": False,
                "input_sizes": [[4, 2]],
                "input_dtypes": ["Float"],
                "time_created_ns": 12,
                "retired": False,
                "state": "scheduled",
            }
        ],
        "pg_status": {
            "0": {"last_enqueued_collective": "5", "last_completed_collective": "4"},
        },
        "version": "2.10",
    },
    separators=(",", ":"),
)


def test_a_flight_record_is_read():
    record = parse_flight_record(RECORD)
    assert record is not None
    assert record.find_oldest_open() == Collective(
        "0", 5, "all_reduce", "gloo", ((4, 2),), ("Float",), 12, is_done=False
    )
    assert (record.enqueued, record.completed) == ({"0": 5}, {"0": 4})
    assert parse_counters(RECORD) == {"0": (5, 4)}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"entries":[{}]}', '{"pg_status":{"0":{}}}'])
def test_another_format_is_no_record(text):
    assert parse_flight_record(text) is None
    assert parse_counters(text) is None


def test_faulthandlers_text_is_read_and_the_last_thread_is_the_main_one():
    text = (
        "Current thread 0x1 (most recent call first):\n  <no Python frame>\n\n"
        'Thread 0x2 (most recent call first):\n  File "/a b/x.py", line 3 in inner\n'
        '  File "/a b/x.py", line ??? in outer\n'
    )
    assert parse_faulthandler(text) == (
        ThreadStack((Frame("/a b/x.py", 3, "inner"), Frame("/a b/x.py", 0, "outer")), is_main=True),
    )


def test_py_spys_names_are_cut_to_what_faulthandler_says():
    frame = {"name": "Trainer.step", "filename": "/job/t.py", "line": 4}
    text = json.dumps([{"thread_name": "MainThread", "owns_gil": True, "frames": [frame]}])
    assert parse_py_spy(text) == (
        ThreadStack((Frame("/job/t.py", 4, "step"),), is_main=True, owns_gil=True),
    )
    assert parse_py_spy("no json") == ()


def test_a_crash_leaves_the_frames_of_the_thread_that_crashed(tmp_path):
    path = tmp_path / "crash"
    program = "import ctypes, faulthandler, sys\n"
    program += (
        "faulthandler.enable(open(sys.argv[1], 'w'))\ndef deep(): ctypes.string_at(0)\ndeep()"
    )
    subprocess.run([sys.executable, "-c", program, path], check=False, timeout=30)
    assert [frame.function for frame in read_crash_frames(path)][:2] == ["<module>", "deep"]
    assert read_crash_frames(tmp_path / "none") == ()
    (tmp_path / "empty").touch()
    assert read_crash_frames(tmp_path / "empty") == ()


def test_a_crash_of_a_native_thread_tells_where_the_main_one_was(tmp_path):
    path = tmp_path / "crash"
    path.write_text(
        "Fatal Python error: Aborted\n\nThread 0x7f (most recent call first):\n"
        '  File "/job/t.py", line 3 in inner\n  File "/job/t.py", line 9 in <module>\n'
    )
    assert [frame.line for frame in read_crash_frames(path)] == [9, 3]


def test_a_journal_is_read_as_far_as_it_is_whole(tmp_path):
    path = tmp_path / "journal"
    path.write_text('{"server": true}\n{"group": "1", "ranks": [0, 2]}\n{"group": "2", "ra')
    assert read_journal(path) == Journal({"1": (0, 2)}, answers=True, reason="")
    assert not read_journal(tmp_path / "none").answers


@pytest.mark.parametrize(
    ("paths", "place"),
    [
        (["/venv/lib/python3.11/site-packages/torch/x.py", "/job/a/t.py"], "a/t.py:1 in f"),
        (["/usr/lib/python3.11/queue.py", "/elsewhere/t.py"], "t.py:1 in f"),
        (["<frozen runpy>", "/v/lib/python3.11/site-packages/puf/v.py"], "puf/v.py:1 in f"),
        (["<frozen runpy>", "/usr/lib/python3.11/runpy.py"], ""),
    ],
)  # fmt: skip
def test_the_users_frame(paths, place):
    _, user = split_at_user([Frame(path, 1, "f") for path in paths])
    assert render_place(user, Path("/job")) == place


@pytest.mark.parametrize(
    ("state", "wait", "words"),
    [
        ("S", "hrtimer_nanosleep", "sleeps"),
        ("S", "futex_do_wait", "waits for a lock"),
        ("S", "do_wait", "waits for a child process: cc (pid 7)"),
        ("S", "anon_pipe_read", "waits for a pipe"),
        ("R", "", "computes"),
        ("D", "nfs_wait_bit", "is in uninterruptible sleep (waits for a network file system)"),
        ("T", "do_signal_stop", "is stopped (SIGSTOP)"),
        ("t", "ptrace_stop", "is held by a debugger"),
        ("S", "", ""),
    ],
)
def test_what_the_kernel_tells(state, wait, words):
    evidence = RankEvidence(0, 1, native=NativeState(state, wait, ("cc (pid 7)",)))
    assert describe_doing(evidence) == words


class TestPulse:
    def test_a_counter_that_moved_is_progress(self):
        assert Pulse({"0": (6, 5)}).moved_since(Pulse({"0": (5, 5)}), 1.0)

    def test_cpu_time_in_a_collective_is_none(self):
        assert not Pulse({"0": (6, 5)}, cpu=1000).moved_since(Pulse({"0": (6, 5)}), 1.0)

    def test_cpu_time_and_input_elsewhere_are(self):
        earlier = Pulse({"0": (5, 5)})
        assert Pulse({"0": (5, 5)}, cpu=50).moved_since(earlier, 1.0)
        assert Pulse({"0": (5, 5)}, io_bytes=1 << 20).moved_since(earlier, 1.0)
        assert not Pulse({"0": (5, 5)}, cpu=3, io_bytes=100).moved_since(earlier, 1.0)

    def test_without_counters_cpu_time_has_to_do(self):
        assert Pulse(None, cpu=50).moved_since(Pulse(None), 1.0)
        assert not Pulse(None, cpu=1).moved_since(Pulse(None), 1.0)

    def test_a_thread_that_waits_for_a_cpu_is_at_work(self):
        earlier = Pulse(None, wanted_ns={7: 10**9, 8: 0})
        assert Pulse(None, wanted_ns={7: 16 * 10**8, 8: 0}).moved_since(earlier, 1.0)
        assert not Pulse(None, wanted_ns={7: 13 * 10**8, 8: 3 * 10**8}).moved_since(earlier, 1.0)
        assert Pulse(None, is_runnable=True).moved_since(Pulse(None, is_runnable=True), 1.0)
        assert not Pulse(None, is_runnable=True).moved_since(Pulse(None), 1.0)

    def test_but_not_in_a_collective(self):
        earlier = Pulse({"0": (6, 5)}, wanted_ns={7: 0}, is_runnable=True)
        later = Pulse({"0": (6, 5)}, wanted_ns={7: 10**9}, is_runnable=True)
        assert not later.moved_since(earlier, 1.0)
        assert later.is_busy_since(earlier, 1.0)

    def test_a_starved_process_is_at_work_though_it_gets_next_to_no_cpu_time(self, tmp_path):
        spin = "import os\nos.nice({nice})\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
        cpu = min(os.sched_getaffinity(0))
        programs = [spin.format(nice=nice, cpu=cpu) for nice in (19, 0, 0)]
        processes = [subprocess.Popen([sys.executable, "-c", text]) for text in programs]
        pid = processes[0].pid

        def look():
            return time.monotonic(), read_pulse(RunDir(tmp_path), 0, pid, read_stats())

        try:
            for process in processes:
                wait_for(lambda p=process.pid: os.sched_getaffinity(p) == {cpu}, "their one CPU")
            began, first = look()
            seconds, pulse = wait_for(
                lambda: (
                    (p := look())[1].moved_since(first, p[0] - began)
                    and p[0] - began > 1.5
                    and (p[0] - began, replace(p[1], is_runnable=False))
                ),
                "a pulse that moved",
                timeout_s=20.0,
            )
            assert pulse.is_busy_since(first, seconds)
            assert not replace(pulse, wanted_ns={}).is_busy_since(first, seconds)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def evidence_of(rank, times, start=1):
    entries = tuple(
        Collective("0", seq, "all_reduce", "gloo", (), (), at, is_done=True)
        for seq, at in enumerate(times, start)
    )
    return RankEvidence(rank, rank, record=FlightRecord(entries))


def test_lateness_counts_each_collective_once():
    second = 10**9
    early = [n * second for n in range(1, 41)]
    late = [at + second // 2 for at in early]
    looks = [(20, 1), (40, 21)]
    seen = Lateness()
    for until, start in looks:
        both = [
            evidence_of(0, early[start - 1 : until], start),
            evidence_of(1, late[start - 1 : until], start),
        ]
        seen = add_lateness(seen, both, Path(), 2)
        seen = add_lateness(seen, both, Path(), 2)
    assert (seen.collectives, dict(seen.last), seen.waited_s) == (40, {0: 0, 1: 40}, 10.0)
    assert seen.find_slowest() == 1
    assert seen.describe() == (
        "rank 1 was last in 100 % of the collectives; 26 % of the time was spent waiting"
    )


def test_little_waiting_is_not_worth_a_line():
    times = [n * 10**9 for n in range(1, 41)]
    both = [evidence_of(0, times), evidence_of(1, [at + 10**6 for at in times])]
    assert add_lateness(Lateness(), both, Path(), 2).describe() == ""


class TestAsking:
    """A rank that does not answer costs its deadline, no more."""

    def serve(self, path, answer):
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
        server.listen()

        def run():
            with server:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def test_an_answer(self, tmp_path):
        thread = self.serve(tmp_path / "s", b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nhello")
        assert ask(tmp_path / "s", "x", 5.0) == "hello"
        thread.join(5)

    def test_a_path_longer_than_a_socket_takes(self):
        root = Path(tempfile.mkdtemp())
        try:
            deep = root / ("d" * 100) / ("e" * 100)
            deep.mkdir(parents=True)
            (root / "s").touch()
            thread = self.serve(root / "short", b"HTTP/1.1 200 OK\r\n\r\nhello")
            (root / "short").rename(deep / "s")
            assert ask(deep / "s", "x", 5.0) == "hello"
            thread.join(5)
        finally:
            shutil.rmtree(root)

    def test_an_error(self, tmp_path):
        thread = self.serve(tmp_path / "s", b"HTTP/1.1 404 Not Found\r\n\r\n")
        with pytest.raises(NoAnswerError, match="404"):
            ask(tmp_path / "s", "x", 5.0)
        thread.join(5)

    def test_nobody_there(self, tmp_path):
        with pytest.raises(NoAnswerError, match="No such file"):
            ask(tmp_path / "s", "x", 5.0)

    def test_nobody_answers(self, tmp_path):
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s"))
            server.listen()
            with pytest.raises(NoAnswerError, match=r"within 0\.2 s"):
                ask(tmp_path / "s", "x", 0.2)


def test_a_rank_without_torch_is_read_from_outside(tmp_path):
    """py-spy reads a stopped process without disturbing it; the kernel tells the rest."""
    run_dir = RunDir(tmp_path / "run")
    run_dir.stacks_dir.mkdir(parents=True)
    run_dir.ranks_dir.mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        "import time\ndef rest():\n    print('up', flush=True)\n    time.sleep(600)\nrest()\n"
    )
    process = subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        (evidence,) = collect_evidence(run_dir, {0: process.pid})
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert find_py_spy() is not None
    assert describe_doing(evidence) == "is stopped (SIGSTOP)"
    assert evidence.threads[0].frames[0] in (
        Frame(str(program), 3, "rest", "print('up', flush=True)"),
        Frame(str(program), 4, "rest", "time.sleep(600)"),
    )
    assert "=== py-spy" in run_dir.stack_path(0).read_text()


def test_a_rank_that_opens_a_fifo_waits_for_its_other_end(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r})"])
    try:
        wait_for(lambda: "partner" in read_native(process.pid).wait, "the open of the FIFO")
        evidence = RankEvidence(0, process.pid, read_native(process.pid))
        assert describe_doing(evidence) == "waits for the other end of a pipe"
    finally:
        process.kill()
        process.wait()


def read_native(pid):
    return read_native_state(pid, read_stats())
