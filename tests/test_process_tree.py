"""/proc read right, and signals that reach only what was meant."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from harness import wait_for

from puffrun.process import (
    ProcStat,
    find_descendants,
    find_moving,
    find_stat,
    read_stats,
    send_signal,
)

PR_SET_NAME = 15


@contextmanager
def child(code: str, *argv: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A child interpreter that has printed its first line."""
    popen = subprocess.Popen(
        [sys.executable, "-c", code, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert popen.stdout is not None
        assert popen.stdout.readline()
        yield popen
    finally:
        popen.kill()
        popen.communicate()


STAY = "print('up', flush=True); input()"


def stat(pid: int, ppid: int, state: str = "S") -> ProcStat:
    return ProcStat(pid, ppid, f"p{pid}", state, started=pid, cpu=0)


def test_a_process_is_read_as_the_kernel_tells_it() -> None:
    me = find_stat(os.getpid())
    assert me is not None
    assert me.ppid == os.getppid()
    assert me.name == Path("/proc/self/comm").read_text().rstrip("\n")
    assert me.session == os.getsid(0)
    assert me.alive


@pytest.mark.parametrize("name", ["a) S 1 (b", "  ", "x y\t)", "()", "\n"])
def test_a_name_may_hold_what_separates_the_fields(name: str) -> None:
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode()); " + STAY
    with child(code, name) as popen:
        found = find_stat(popen.pid)
        assert found is not None
        assert (found.name, found.ppid) == (name, os.getpid())


def test_cpu_time_counts_up() -> None:
    before = find_stat(os.getpid())
    assert before is not None

    def burnt() -> bool:
        sum(range(200_000))
        now = find_stat(os.getpid())
        return now is not None and now.cpu > before.cpu

    assert wait_for(burnt, "the kernel to count a tick")


@pytest.mark.parametrize("code", [0, 7, 255, -signal.SIGKILL, -signal.SIGSEGV])
def test_a_zombie_carries_its_status(code: int) -> None:
    leave = f"os._exit({code})" if code >= 0 else f"os.kill(os.getpid(), {-code})"
    limit = "import os, resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); "
    with child(limit + "print('up', flush=True); input(); " + leave) as popen:
        assert popen.stdin is not None
        popen.stdin.write(b"\n")
        popen.stdin.flush()
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
        found = find_stat(popen.pid)
        assert found is not None
        assert found.state == "Z"
        assert not found.alive
        assert os.waitstatus_to_exitcode(found.status) == code


def test_nobody_is_found_under_a_pid_that_is_free() -> None:
    with child(STAY) as popen:
        pid = popen.pid
    assert find_stat(pid) is None
    assert pid not in read_stats()


def test_descendants_come_parents_first_and_without_the_roots() -> None:
    stats = {s.pid: s for s in (stat(5, 2), stat(2, 1), stat(3, 1), stat(4, 3), stat(9, 8))}
    assert [s.pid for s in find_descendants([1], stats)] == [2, 3, 5, 4]
    assert [s.pid for s in find_descendants([3, 2], stats)] == [4, 5]
    assert find_descendants([77], stats) == []


def test_descendants_of_this_process_are_really_its_own() -> None:
    grandchild = (
        "import subprocess, sys; "
        "p = subprocess.Popen([sys.executable, '-c', 'input()']); print(p.pid, flush=True); "
        "p.wait()"
    )
    with child(grandchild) as popen:
        found = [s.pid for s in find_descendants([os.getpid()], read_stats())]
        assert popen.pid in found
        below = find_descendants([popen.pid], read_stats())
        assert [s.ppid for s in below] == [popen.pid]


def test_a_signal_reaches_the_process_that_was_meant() -> None:
    with child(STAY) as popen:
        target = find_stat(popen.pid)
        assert target is not None
        assert send_signal(target, signal.SIGTERM)
        assert popen.wait(30) == -signal.SIGTERM
        assert not send_signal(target, signal.SIGTERM), "it is gone"


def test_a_pid_that_was_used_again_is_not_signalled() -> None:
    with child(STAY) as popen:
        target = find_stat(popen.pid)
        assert target is not None
        older = replace(target, started=target.started - 1)
        assert not send_signal(older, signal.SIGKILL)
        assert popen.poll() is None


def test_a_zombie_is_not_signalled() -> None:
    with child("print('up', flush=True)") as popen:
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
        target = find_stat(popen.pid)
        assert target is not None
        assert not send_signal(target, signal.SIGTERM)


def test_a_process_of_another_user_is_no_error() -> None:
    """A rank may have started something through sudo; it is left over, not a crash of ours."""
    code = """
import os, signal, sys
from puffrun.process import find_stat, send_signal
target = find_stat(int(sys.argv[1]))
if os.getuid() == 0:
    os.setuid(65534)
try:
    os.kill(target.pid, 0)
    may = True
except PermissionError:
    may = False
print(send_signal(target, 0) == may, flush=True)
"""
    theirs = os.getpid() if os.getuid() == 0 else 1
    done = subprocess.run(
        [sys.executable, "-c", code, str(theirs)], capture_output=True, timeout=30, check=False
    )
    assert done.stdout == b"True\n", done.stderr.decode()


def test_who_waits_for_a_stopped_child_does_not_move_either() -> None:
    at_disk, running = stat(4, 1, "D"), stat(5, 1)
    members = [stat(2, 1, "D"), stat(3, 2, "T"), at_disk, stat(6, 4, "Z"), running, stat(7, 5, "t")]
    assert find_moving(members) == [at_disk, running]


VFORK = """
#include <signal.h>
#include <unistd.h>
int main(void) { if (vfork() == 0) { raise(SIGSTOP); _exit(0); } pause(); }
"""


def test_a_parent_in_vfork_is_one_that_waits_for_its_child(tmp_path: Path) -> None:
    source = tmp_path / "vfork.c"
    source.write_text(VFORK)
    subprocess.run(["cc", source, "-o", tmp_path / "vfork"], check=True, timeout=60)
    with subprocess.Popen([tmp_path / "vfork"]) as popen:
        me = os.getpid()
        try:
            wait_for(
                lambda: (
                    {s.state for s in find_descendants([me], read_stats()) if s.name == "vfork"}
                    == {"D", "T"}
                ),
                "the child to stop",
            )
            tree = [s for s in find_descendants([me], read_stats()) if s.name == "vfork"]
            assert find_moving(tree) == []
        finally:
            for each in find_descendants([popen.pid], read_stats()):
                send_signal(each, signal.SIGKILL)
            popen.kill()
