"""Real trees below a real guardian: whatever a process does to hide, nothing outlives the end."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import wait_for

from puffrun.process import (
    Guarded,
    GuardedExit,
    find_descendants,
    find_moving,
    find_stat,
    read_stats,
    send_signal,
    start_guarded,
)

LIMIT_S = 30.0
ROOT = Path("/")

# what every program below begins with
PRELUDE = """
import os, signal, subprocess, sys, threading, time
signal.alarm(600)
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
def stay():
    while True: threading.Event().wait(3600)
def ignore(*names):
    for name in names: signal.signal(getattr(signal, name), signal.SIG_IGN)
"""


def program(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", PRELUDE + textwrap.dedent(code)]


class Tree:
    """A guarded command; its stdout is a pipe, its first line `ready PID...`."""

    def __init__(self, code: str, *argv: str, **options) -> None:
        reader, writer = os.pipe()
        self.output = os.fdopen(reader, "rb")
        try:
            self.guarded: Guarded = start_guarded(
                [*program(code), *argv],
                **{"cwd": ROOT, "env": {}, "stdout": writer, "grace_s": 1.0, **options},
            )
        except BaseException:
            self.output.close()
            raise
        finally:
            os.close(writer)

    def ready(self) -> list[int]:
        """The pids that the program names in its first line."""
        first, *pids = self.output.readline().split()
        assert first == b"ready"
        return [int(pid) for pid in pids]

    def wait(self, timeout_s: float = LIMIT_S) -> GuardedExit:
        ended = self.guarded.wait(timeout_s)
        assert ended is not None, "it did not end in time"
        return ended


@contextmanager
def tree(code: str, *argv: str, **options) -> Iterator[Tree]:
    made = Tree(code, *argv, **options)
    guardian = find_stat(made.guarded.pid)
    try:
        yield made
    finally:
        if guardian is not None:
            send_signal(guardian, signal.SIGCONT)
        made.guarded.kill()
        made.guarded.wait(LIMIT_S)
        made.output.close()


def alive(pids: list[int]) -> list[int]:
    """Which of them run, by what the kernel says of every thread."""
    return [pid for pid in pids if any(state not in "ZX" for state in thread_states(pid))]


def thread_states(pid: int) -> list[str]:
    try:
        stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return []
    return [stat.rpartition(")")[2].split()[0] for stat in stats]


def children() -> set[int]:
    return {stat.pid for stat in find_descendants([os.getpid()], read_stats())}


# how a command ends


@pytest.mark.parametrize(
    ("code", "returncode"),
    [
        ("os._exit(0)", 0),
        ("os._exit(7)", 7),
        ("os._exit(255)", 255),
        ("os.kill(os.getpid(), 9)", -9),
        ("os.kill(os.getpid(), 15)", -15),
    ],
)
def test_the_exact_status_of_the_command(code: str, returncode: int) -> None:
    with tree(code) as made:
        ended = made.wait()
        assert ended == GuardedExit(returncode)
        assert alive([made.guarded.pid]) == []


@pytest.mark.parametrize(
    ("argv", "cwd", "error"),
    [
        (["/nowhere/program"], "/", FileNotFoundError),
        (["no-such-program-anywhere"], "/", FileNotFoundError),
        (["true"], "/nowhere", FileNotFoundError),
        (["/"], "/", PermissionError),
        (["true", "x" * 3_000_000], "/", OSError),
    ],
    ids=["no file", "not on PATH", "no cwd", "a directory", "too long"],
)
def test_a_command_that_cannot_be_started(argv, cwd: str, error) -> None:
    before = children()
    with pytest.raises(error) as caught:
        start_guarded(argv, cwd=Path(cwd), env={"PATH": os.environ["PATH"]})
    assert caught.value.errno
    missing = cwd if cwd != "/" else argv[0]
    assert missing in str(caught.value)
    assert children() == before, "the guardian is gone and reaped"


def test_what_a_command_gets_is_what_was_asked_for(tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xc3\xa9 \xff")
    directory = tmp_path / "a b ü"
    directory.mkdir()
    code = """
        fds = [fd for fd in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + fd)]
        say("ready", *sorted(map(int, fds)))
        os.write(int(sys.argv[1]), b"hello")
        said = [os.fsencode(sys.argv[2]), os.environb.get(b"NAME"), os.getcwd(), os.getsid(0)]
        say(repr(said))
    """
    reader, writer = os.pipe()
    with tree(code, str(writer), odd, cwd=directory, env={"NAME": odd}, child_fds=[writer]) as made:
        os.close(writer)
        assert made.ready() == [0, 1, 2, writer]
        made.wait()
        with os.fdopen(reader, "rb") as sent:
            assert sent.read() == b"hello", "and nobody holds the other end any more"
        odd_bytes = os.fsencode(odd)
        said = [odd_bytes, odd_bytes, str(directory), made.guarded.command_pid]
        assert made.output.read().decode().strip() == repr(said)


def test_signals_are_as_in_a_plain_shell_and_nohup_stays() -> None:
    code = """
        import ctypes
        say("ready")
        mask = int(open("/proc/self/status").read().split("SigIgn:")[1].split()[0], 16)
        say([s for s in range(1, 32) if mask >> (s - 1) & 1 and s not in (13, 25)])
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with tree(code) as made:
            made.ready()
            assert made.output.readline() == b"[%d]\n" % signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)


# what hides

HIDERS = {
    "a child": "pids = [subprocess.Popen(['sleep', '600']).pid]",
    "a new session": "pids = [subprocess.Popen(['sleep', '600'], start_new_session=True).pid]",
    "a cleared environment": "pids = [subprocess.Popen(['/bin/sleep', '600'], env={}).pid]",
    "ignores SIGTERM": """
        pids = [os.fork()]
        if pids == [0]:
            ignore("SIGTERM", "SIGHUP", "SIGINT"); os.write(gate[1], b"1"); stay()
        os.read(gate[0], 1)
    """,
    "a daemon": """
        if os.fork() == 0:
            os.setsid()
            if (pid := os.fork()) == 0:
                os.chdir("/"); ignore("SIGHUP", "SIGTERM")
                for fd in (0, 1, 2): os.close(fd)
                os.write(gate[1], b"%d" % os.getpid()); stay()
            os._exit(0)
        os.wait(); pids = [int(os.read(gate[0], 20))]
    """,
    "is stopped": """
        pids = [os.fork()]
        if pids == [0]: os.kill(os.getpid(), signal.SIGSTOP); stay()
        os.waitpid(pids[0], os.WUNTRACED)
    """,
    "a thread's child": """
        pids = []
        start = lambda: pids.append(subprocess.Popen(["sleep", "600"]).pid)
        thread = threading.Thread(target=start)
        thread.start(); thread.join()
    """,
    "lives on in a thread": """
        import ctypes
        pids = [os.fork()]
        if pids == [0]:  # its first thread ends: /proc calls the whole process a zombie
            ignore("SIGTERM")
            threading.Thread(target=stay).start()
            os.write(gate[1], b"1"); ctypes.CDLL(None).syscall(60, 0)
        os.read(gate[0], 1)
        while open(f"/proc/{pids[0]}/stat").read().rpartition(")")[2].split()[0] != "Z": pass
    """,
    "a deep chain": """
        pids = []
        read, write = os.pipe()
        for depth in range(20):
            if os.fork() != 0: break
        os.write(write, b"%d " % os.getpid())
        if depth == 0:
            while len(pids) < 21: pids += os.read(read, 999).split()
            pids = [int(pid) for pid in pids if int(pid) != os.getpid()]
        else: stay()
    """,
}


@pytest.mark.parametrize("hider", HIDERS)
def test_nothing_outlives_the_command(hider: str) -> None:
    code = "gate = os.pipe()\n" + textwrap.dedent(HIDERS[hider])
    code += '\nsay("ready", *pids)\nos._exit(3)\n'
    with tree(code, grace_s=0.3) as made:
        pids = made.ready()
        ended = made.wait()
        assert alive(pids) == []
        assert ended.returncode == 3
        assert {stat.pid for stat in ended.cleaned} == set(pids)
        assert ended.leftovers == ()


def test_who_ends_politely_gets_the_time_to(tmp_path: Path) -> None:
    code = """
        def save(*_): say("saved"); os._exit(0)
        signal.signal(signal.SIGTERM, save)
        say("ready"); stay()
    """
    with tree(code, grace_s=LIMIT_S) as made:
        made.ready()
        made.guarded.stop()
        assert made.wait().returncode == 0
        assert made.output.read() == b"saved\n"


def test_a_leader_may_still_use_its_children_while_it_saves() -> None:
    code = """
        loader = subprocess.Popen(["sleep", "600"])
        def save(*_): say("loader", loader.poll()); os._exit(0)
        signal.signal(signal.SIGTERM, save)
        say("ready", loader.pid); stay()
    """
    with tree(code, grace_s=LIMIT_S, hold=True) as made:
        pids = made.ready()
        made.guarded.set_leaders([made.guarded.command_pid or 0])
        made.guarded.stop()
        made.wait()
        assert made.output.read() == b"loader None\n"
        assert alive(pids) == []


def test_kill_cuts_a_long_grace_short() -> None:
    with tree('ignore("SIGTERM"); say("ready"); stay()', grace_s=3600.0) as made:
        made.ready()
        made.guarded.stop()
        assert made.guarded.wait(0.1) is None
        made.guarded.kill()
        assert made.wait().returncode == -signal.SIGKILL


def test_what_is_forked_while_the_kill_is_under_way() -> None:
    """Each one that is asked to end starts two others, in new sessions."""
    code = """
        def fork(*_):
            for _ in range(2):
                if os.fork() == 0: os.setsid(); return
        signal.signal(signal.SIGTERM, fork)
        def count():
            for _ in range(100):
                if os.fork() == 0: os.setsid(); ignore("SIGTERM"); stay()
                threading.Event().wait(0.005)
        if os.fork() == 0: count(); stay()
        say("ready", os.getpid()); stay()
    """
    with tree(code, grace_s=0.3) as made:
        made.ready()
        before = find_descendants([made.guarded.pid], read_stats())
        made.guarded.stop()
        ended = made.wait()
        assert ended.leftovers == ()
        assert alive([stat.pid for stat in (*before, *ended.cleaned)]) == []
        assert len(ended.cleaned) > 2


def test_zombies_are_reaped_with_their_status_and_are_nothing_to_clean() -> None:
    code = """
        if os.fork() == 0:
            grandchild = os.fork()
            if grandchild == 0: threading.Event().wait(0.05); os._exit(9)
            say("ready", grandchild); os._exit(0)
        os.wait()
        threading.Event().wait(0.3); os._exit(0)
    """
    with tree(code) as made:
        (pid,) = made.ready()
        seen: list[dict] = []
        wait_for(
            lambda: seen.extend(made.guarded.receive(1.0)) or seen[-1].get("ended") == 0, "end"
        )
        assert {"reaped": [pid, 9]} in seen
        assert {"exited": 0} in seen
        assert made.wait().cleaned == ()


def test_thousands_of_orphans_block_nobody() -> None:
    """Nobody reads what the guardian says for a while, and it has much to say."""
    code = """
        if os.fork() == 0:
            for _ in range(400):
                if os.fork() == 0: os._exit(0)
            os._exit(0)
        os.wait(); say("ready"); stay()
    """
    with tree(code) as made:
        made.ready()
        made.guarded.stop()
        assert made.wait().returncode == -signal.SIGTERM


def test_a_held_tree_stays_when_its_command_has_gone() -> None:
    code = 'say("ready", subprocess.Popen(["sleep", "600"]).pid); os._exit(5)'
    with tree(code, hold=True) as made:
        pids = made.ready()
        messages: list[dict] = []
        wait_for(lambda: messages.extend(made.guarded.receive(1.0)) or messages, "the exit")
        assert messages == [{"exited": 5}]
        assert alive(pids) == pids
        made.guarded.stop()
        assert made.wait().returncode == 5
        assert alive(pids) == []


def test_a_pipe_that_was_left_open_is_closed_at_the_end() -> None:
    with tree('say("ready", subprocess.Popen(["sleep", "600"]).pid); os._exit(0)') as made:
        made.ready()
        made.wait()
        assert made.output.read() == b""


def test_a_daemon_to_spare_is_spared(tmp_path: Path) -> None:
    code = """
        daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
        say("ready", daemon.pid); os._exit(0)
    """
    with tree(code, spare=["sleep"]) as made:
        (pid,) = made.ready()
        stat = find_stat(pid)
        assert stat is not None
        try:
            assert made.wait().leftovers == ()
            assert alive([pid]) == [pid]
        finally:
            send_signal(stat, signal.SIGKILL)
            wait_for(lambda: os.waitpid(pid, os.WNOHANG)[0], "our adopted child")


def test_polite_signals_do_not_end_the_guardian() -> None:
    with tree('say("ready"); stay()') as made:
        made.ready()
        for signum in ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "TSTP"):
            os.kill(made.guarded.pid, getattr(signal, f"SIG{signum}"))
        made.guarded.stop()
        assert made.wait().returncode == -signal.SIGTERM
        assert not made.guarded.lost


# pause and resume


def test_pause_stops_all_of_it_and_resume_lets_it_go_on() -> None:
    code = """
        if os.fork() == 0:  # forks while it is being stopped
            while True:
                if os.fork() == 0: threading.Event().wait(1); os._exit(0)
                os.waitpid(-1, os.WNOHANG); threading.Event().wait(0.001)
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        say("ready")
        for line in sys.stdin: say("read", line.strip())
    """
    reader, writer = os.pipe()
    with tree(code, stdin=reader) as made:
        os.close(reader)
        made.ready()
        stopped = made.guarded.pause()
        members = find_descendants([made.guarded.pid], read_stats())
        assert find_moving(members) == []
        assert len(stopped) >= 3
        os.write(writer, b"go on\n")
        made.guarded.resume(stopped)
        assert made.output.readline() == b"read go on\n"
        os.close(writer)


def test_a_paused_tree_can_be_ended() -> None:
    with tree('say("ready"); stay()', grace_s=LIMIT_S) as made:
        made.ready()
        made.guarded.pause()
        made.guarded.stop()
        assert made.wait().returncode == -signal.SIGTERM


# a launcher or a guardian that is killed: in an interpreter of their own, which adopts what is left

LAUNCHER = """
import fcntl, json, os, signal, sys, threading
from pathlib import Path
from puffrun.process import *
def start(code, **options):
    reader, writer = os.pipe()
    argv = [sys.executable, "-I", "-S", "-c", code]
    guarded = start_guarded(argv, cwd=Path("/"), env={}, stdout=writer, grace_s=0.3, **options)
    os.close(writer)
    return guarded, [int(pid) for pid in os.fdopen(reader).readline().split()[1:]]
def say(**fields):
    print(json.dumps(fields), flush=True)
code = sys.argv[1]
"""

STUBBORN = """
pids = [os.getpid()]
gate = os.pipe()
for how in range(3):
    if (pid := os.fork()) == 0:
        if how == 1: os.setsid()
        ignore("SIGTERM", "SIGHUP")
        if how == 2: os.environ.clear()
        os.write(gate[1], b"1"); stay()
    pids.append(pid)
for _ in range(3): os.read(gate[0], 1)
say("ready", *pids); stay()
"""


@contextmanager
def launcher(code: str, child: str = STUBBORN, *argv: str) -> Iterator["subprocess.Popen[bytes]"]:
    """An interpreter that starts guarded commands of its own, as puffrun does."""
    popen = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER + textwrap.dedent(code), PRELUDE + child, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield popen
    finally:
        below = find_descendants([popen.pid], read_stats())
        popen.kill()
        popen.communicate()
        for stat in below:
            send_signal(stat, signal.SIGKILL)


def hear(popen: "subprocess.Popen[bytes]") -> dict:
    assert popen.stdout is not None
    fields: dict = json.loads(popen.stdout.readline())
    return fields


def test_a_launcher_that_is_killed_takes_everything_with_it() -> None:
    code = "guarded, pids = start(code); say(pids=[guarded.pid, *pids]); threading.Event().wait()"
    with launcher(code) as popen:
        pids = hear(popen)["pids"]
        assert alive(pids) == pids
        assert len(pids) == 5
        popen.kill()
        wait_for(lambda: not alive(pids), "all to be gone", timeout_s=10)


def test_a_launcher_that_is_killed_while_its_guardian_has_much_to_say() -> None:
    flood = """
if os.fork() == 0:
    for _ in range(400):
        if os.fork() == 0: os._exit(0)
    os._exit(0)
os.wait(); say("ready", os.getpid()); stay()
"""
    code = "guarded, pids = start(code); say(pids=[guarded.pid, *pids]); threading.Event().wait()"
    with launcher(code, flood) as popen:
        pids = hear(popen)["pids"]
        popen.kill()
        wait_for(lambda: not alive(pids), "all to be gone", timeout_s=10)


def test_a_launcher_that_is_killed_while_paused_leaves_nothing_stopped() -> None:
    code = """
        guarded, pids = start(code)
        guarded.pause()
        say(pids=[guarded.pid, *pids])
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    with launcher(code) as popen:
        pids = hear(popen)["pids"]
        popen.kill()
        wait_for(lambda: not alive(pids), "all to be gone", timeout_s=10)


def test_a_guardian_that_is_killed_is_replaced_by_the_launcher() -> None:
    code = """
        guarded, pids = start(code)
        say(pids=pids, guardian=guarded.pid)
        ended = guarded.wait(30)
        below = find_descendants([os.getpid()], read_stats())
        say(lost=guarded.lost, code=ended.returncode, cleaned=[s.pid for s in ended.cleaned],
            leftovers=len(ended.leftovers), children=len(below))
    """
    with launcher(code) as popen:
        started = hear(popen)
        os.kill(started["guardian"], signal.SIGKILL)
        told = hear(popen)
        assert alive(started["pids"]) == []
        assert set(told.pop("cleaned")) == set(started["pids"])
        assert told == {"lost": True, "code": None, "leftovers": 0, "children": 0}


def test_of_several_guardians_only_the_killed_ones_children_end() -> None:
    code = """
        first, ours = start(code)
        second, theirs = start(code)
        os.kill(first.pid, signal.SIGKILL)
        first.wait(30)
        say(ended=ours, live=theirs, lost=second.lost)
        sys.stdin.readline()
        second.stop()
        say(code=second.wait(30).returncode)
    """
    with launcher(code) as popen:
        told = hear(popen)
        assert alive(told["ended"]) == []
        assert alive(told["live"]) == told["live"]
        assert not told["lost"]
        assert popen.stdin is not None
        popen.stdin.write(b"\n")
        popen.stdin.flush()
        assert hear(popen) == {"code": -signal.SIGTERM}
        assert alive(told["live"]) == []


def test_a_command_whose_output_we_want_is_no_orphan(tmp_path: Path) -> None:
    """A thread takes `cc --version` while another takes over from a killed guardian."""
    code = """
        guarded, pids = start(code)
        fifo = sys.argv[2]
        os.mkfifo(fifo)
        results = []
        argv = ["sh", "-c", f"exec < {fifo}; read word; read word; echo $word"]
        thread = threading.Thread(target=lambda: results.append(run_captured(argv, timeout_s=30)))
        thread.start()
        with open(fifo, "w") as words:
            print("it runs", file=words, flush=True)
            os.kill(guarded.pid, signal.SIGKILL)
            guarded.wait(30)
            print("done", file=words)
        thread.join()
        say(pids=pids, out=results[0].stdout.decode(), code=results[0].returncode)
    """
    with launcher(code, STUBBORN, str(tmp_path / "fifo")) as popen:
        told = hear(popen)
        assert alive(told["pids"]) == []
        assert (told["out"], told["code"]) == ("done\n", 0)


# the lock


@pytest.fixture
def lock_fd(tmp_path: Path) -> Iterator[int]:
    """A lock that is held; the guardian is to keep it."""
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        yield fd
    finally:
        os.close(fd)


def is_free(path: Path) -> bool:
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@pytest.mark.parametrize("killed", ["the launcher", "nobody"])
def test_a_lock_is_free_only_when_no_writer_is_left(tmp_path: Path, killed: str) -> None:
    lock = tmp_path / "lock"
    code = """
        fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        guarded, pids = start(code, keep_fds=[fd])
        os.close(fd)
        say(pids=pids)
        sys.stdin.readline()
        guarded.stop(); guarded.wait(30)
    """
    with launcher(code, STUBBORN, str(lock)) as popen:
        pids = hear(popen)["pids"]
        assert not is_free(lock)
        assert popen.stdin is not None
        if killed == "nobody":
            popen.stdin.write(b"\n")
            popen.stdin.flush()
        else:
            popen.kill()
        wait_for(lambda: is_free(lock), "the lock", timeout_s=10)
        assert alive(pids) == []


def test_a_lock_stays_held_when_the_guardian_is_killed(tmp_path: Path) -> None:
    """The launcher's own descriptor is the second one that holds it."""
    lock = tmp_path / "lock"
    code = """
        fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX)
        guarded, pids = start(code, keep_fds=[fd])
        say(pids=pids)
        os.kill(guarded.pid, signal.SIGKILL)
        guarded.wait(30)
        os.close(fd)
        say(done=True)
        sys.stdin.readline()
    """
    with launcher(code, STUBBORN, str(lock)) as popen:
        pids = hear(popen)["pids"]
        wait_for(lambda: is_free(lock), "the lock", timeout_s=10)
        assert alive(pids) == []


def test_the_command_does_not_inherit_the_lock(tmp_path: Path, lock_fd: int) -> None:
    with tree('say("ready"); stay()', keep_fds=[lock_fd]) as made:
        made.ready()
        pid = made.guarded.command_pid
        assert tmp_path / "lock" not in open_files(pid)
        assert tmp_path / "lock" in open_files(made.guarded.pid)


def open_files(pid: int | None) -> list[Path]:
    return [entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir()]


# a guardian that does not answer


def test_a_stopped_guardian_costs_no_more_than_the_wait() -> None:
    with tree('say("ready"); stay()') as made:
        made.ready()
        os.kill(made.guarded.pid, signal.SIGSTOP)
        made.guarded.stop()
        assert made.guarded.wait(0.2) is None
        os.kill(made.guarded.pid, signal.SIGCONT)
        assert made.wait().returncode == -signal.SIGTERM
