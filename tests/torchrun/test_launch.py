"""The real puffrun around a real torchrun: what a program sees, and what the user gets."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness import PROGRAMS, Run, clean_environ, puffrun, wait_for

from puffrun.process import find_descendants, find_moving, find_stat, read_stats

PUFFRUN = str(Path(sys.executable).with_name("puffrun"))
QUICK = ("--grace", "1")


def write(path: Path, code: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


# what a program sees: one run, looked at from many sides

ARGS = [
    "--train.learning-rate",
    "1e-4",
    "train.lr=1",
    "",
    " ",
    "ünï 🏖",
    "--help",
    "-c",
    "--cpus",
    "7",
    "--",
    "a\nb",
    "$HOME",
    "'\"\\",
]

SEE = r"""
    import json, os, socket, subprocess, sys
    import helper
    with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 10):
        connected = True
    child = "import json, os, sys; print(json.dumps([dict(os.environ), sys.path]))"
    asked = subprocess.run([sys.executable, "-c", child], cwd="/", capture_output=True, check=True)
    env, path = json.loads(asked.stdout)
    seen = {
        "argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "path": sys.path,
        "stdin": sys.stdin.read(), "connected": connected, "child": [env, path],
        "own_site": getattr(sys, "own_site", None), "helper": helper.HERE, "sid": os.getsid(0),
        "pid": os.getpid(), "ppid_name": open(f"/proc/{os.getppid()}/comm").read(),
        "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd")),
        "main": sys.modules["__main__"].__file__,
    }
    with open(f"seen-{os.environ['RANK']}.json", "w") as file:
        json.dump(seen, file)
"""
LEFT_OVER = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "5",
    "RANK": "6",
    "WORLD_SIZE": "7",
    "MASTER_ADDR": "10.255.255.1",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RESTART_COUNT": "3",
    "PUFFRUN_RUN_ID": "an outer one",
}


@dataclass
class Seen:
    stderr: str
    ranks: list[dict]
    dir: Path
    run_id: str = ""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Two ranks in a directory with an odd name, with a torch.py and a json.py in it."""
    cwd = tmp_path_factory.mktemp("a dir with ünï")
    write(cwd / "torch.py", "raise RuntimeError('the torch.py of the current directory')")
    write(cwd / "json.py", "raise RuntimeError('the json.py of the current directory')")
    write(cwd / "program" / "helper.py", "HERE = __file__")
    write(cwd / "program" / "train it.py", SEE)
    write(cwd / "site" / "sitecustomize.py", "import sys; sys.own_site = True")
    reader, writer = os.pipe()
    os.write(writer, b"typed\n")
    os.close(writer)
    env = {**LEFT_OVER, "PYTHONPATH": str(cwd / "site"), "MINE": "mine"}
    options = ("--cpus", "2", "program/train it.py", *ARGS)
    with puffrun(*options, cwd=cwd, env=env, stdin=reader, command=(PUFFRUN,)) as run:
        os.close(reader)
        assert run.wait() == 0, run.stderr
        found = [cwd / f"seen-{rank}.json" for rank in range(2)]
        ranks = [json.loads(path.read_text()) for path in found]
        return Seen(run.stderr, ranks, cwd, run.report["run_id"])


def test_args_are_verbatim(seen: Seen) -> None:
    assert [rank["argv"] for rank in seen.ranks] == [ARGS, ARGS]


def test_the_rank_variables_are_torchruns(seen: Seen) -> None:
    for number, rank in enumerate(seen.ranks):
        env = rank["env"]
        expected = {
            "RANK": str(number),
            "LOCAL_RANK": str(number),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "PUFFRUN_RUN_ID": seen.run_id,
            "MINE": "mine",
        }
        assert {name: env.get(name) for name in expected} == expected
        assert not [name for name in env if name.startswith("PET_")]
        assert int(env["OMP_NUM_THREADS"]) >= 1
    assert seen.ranks[0]["env"]["MASTER_PORT"] == seen.ranks[1]["env"]["MASTER_PORT"]
    assert all(rank["connected"] for rank in seen.ranks), "the store listens on MASTER_PORT"


def test_what_is_left_over_of_another_launcher_is_said(seen: Seen) -> None:
    assert "PET_NNODES=2" in seen.stderr
    assert "OMP_NUM_THREADS" not in seen.stderr, "torchrun's banner"


def test_stdin_reaches_rank_0_only(seen: Seen) -> None:
    assert [rank["stdin"] for rank in seen.ranks] == ["typed\n", ""]


def test_the_program_stands_where_the_user_does(seen: Seen) -> None:
    for rank in seen.ranks:
        assert rank["cwd"] == str(seen.dir)
        assert rank["main"] == str(seen.dir / "program" / "train it.py")
        assert rank["path"][0] == str(seen.dir / "program"), "as `python train.py` has it"
        assert rank["helper"] == str(seen.dir / "program" / "helper.py")


def test_the_users_sitecustomize_and_pythonpath_are_respected(seen: Seen) -> None:
    for rank in seen.ranks:
        assert rank["own_site"] is True
        env, path = rank["child"]
        assert env["PYTHONPATH"] == rank["env"]["PYTHONPATH"] == str(seen.dir / "site")
        assert not [entry for entry in (*path, *rank["path"]) if "inject" in entry]


def test_a_rank_leads_its_own_session_and_inherits_nothing_else(seen: Seen) -> None:
    for rank in seen.ranks:
        assert rank["sid"] == rank["pid"]
        assert len(rank["fds"]) <= 6, "stdio, the directory being listed, the crash file"


# logs and console


def test_logs_are_exact_and_lines_whole(tmp_path: Path) -> None:
    """Two ranks, both shown, with stdout and stderr apart, in bursts right up to the end."""
    code = r"""
        import os, threading
        rank = os.environ["RANK"].encode()
        def say(fd, name):
            for n in range(4000):
                os.write(fd, b"%s %s %d " % (name, rank, n) + b"x" * (n % 300) + b"\n")
        threads = [threading.Thread(target=say, args=a) for a in ((1, b"out"), (2, b"err"))]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        os.write(1, b"\x00\xff\r 1 %\r 2 %\n\n" + b"y" * 500_000 + b"\nno final newline " + rank)
    """
    program = write(tmp_path / "train.py", code)
    with puffrun("--cpus", "2", "--show-ranks", "all", program, cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr
        shown = run.out.read_bytes().split(b"\n")
        told = run.err.read_bytes().split(b"\n")
        for rank in range(2):
            log = (run.dir / "logs" / f"rank-{rank}.log").read_bytes()
            prefix = b"rank %d | " % rank
            out = [line.removeprefix(prefix) for line in shown if line.startswith(prefix)]
            err = [line.removeprefix(prefix) for line in told if line.startswith(prefix)]
            padded = [b"%d %d " % (rank, n) + b"x" * (n % 300) for n in range(4000)]
            tail = [b" 2 %", b"", b"y" * 500_000, b"no final newline %d" % rank]
            assert out == [b"out " + line for line in padded] + tail
            assert err == [b"err " + line for line in padded]
            redrawn = b"\x00\xff\r 1 %\r"
            written = b"".join(line + b"\n" for line in (*out[:4000], *err)) + redrawn
            written += b"\n".join(tail)
            assert Counter(log) == Counter(written), "the log has every byte, as it was written"
        assert all(line.startswith(b"rank ") for line in shown if line)


def test_one_shown_rank_is_copied_byte_for_byte(tmp_path: Path) -> None:
    data = bytes(range(256)) * 8_192
    code = f"import os; data = bytes(range(256)) * 8_192; n = 0\n{COPY}"
    program = write(tmp_path / "train.py", code)
    with puffrun("--cpus", "1", program, cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr
        assert (run.dir / "logs" / "rank-0.log").read_bytes() == data
        assert run.out.read_bytes() == data


COPY = "while n < len(data): n += os.write(1, data[n:n + 65536])"


def test_closed_standard_streams_do_not_end_a_run(tmp_path: Path) -> None:
    code = "import os, sys; print('out'); print('err', file=sys.stderr); sys.exit(5)"
    program = write(tmp_path / "train.py", code)

    def close_all() -> None:
        for fd in range(3):
            os.close(fd)

    streams = {"stdin": None, "stdout": None, "stderr": None, "preexec_fn": close_all}
    with puffrun("--cpus", "1", program, cwd=tmp_path, **streams) as run:
        assert run.wait() == 5
        assert sorted(run.log(0).split()) == ["err", "out"]
        assert run.report["cause"]["exit_code"] == 5


def test_a_reader_that_leaves_does_not_end_a_run(tmp_path: Path) -> None:
    """`puffrun train | head -1`."""
    code = "for n in range(50_000): print('line', n, flush=n % 1000 == 0)\nraise SystemExit(6)"
    program = write(tmp_path / "train.py", code)
    reader, writer = os.pipe()
    with puffrun("--cpus", "1", program, cwd=tmp_path, stdout=writer, stderr=writer) as run:
        os.close(writer)
        assert os.read(reader, 4)
        os.close(reader)
        assert run.wait() == 6, run.stderr + str(list(tmp_path.iterdir()))
        assert run.log(0).splitlines()[-1] == "line 49999"


# a terminal


@dataclass
class Terminal:
    """A user at a terminal: what is shown so far, and the keys."""

    master: int
    shown: bytearray = field(default_factory=bytearray)

    def read(self) -> None:
        try:
            while data := os.read(self.master, 1 << 16):
                self.shown += data
        except OSError:
            return

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait_for(self, words: bytes) -> None:
        wait_for(lambda: words in self.shown, f"{words!r} on the screen")


def take_terminal() -> None:
    """Make stdin the controlling terminal, and ourselves its foreground group."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def at_a_terminal(*args: str | Path, cwd: Path) -> Iterator[tuple[Terminal, Run]]:
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (31, 97))
    terminal = Terminal(master)
    reading = threading.Thread(target=terminal.read, daemon=True)
    reading.start()
    streams = {"stdin": slave, "stdout": slave, "stderr": slave, "preexec_fn": take_terminal}
    try:
        with puffrun(*args, cwd=cwd, env={"TERM": "xterm"}, **streams) as run:
            os.close(slave)
            yield terminal, run
    finally:
        reading.join(10)
        os.close(master)


AT_TERMINAL = r"""
    import os, signal, sys, threading
    rank = os.environ["RANK"]
    def say(text): os.write(1, text.encode())
    def size(*_): say("size %dx%d\n" % tuple(os.get_terminal_size(1)))
    if rank == "0":
        signal.signal(signal.SIGWINCH, size)
        say("tty %s %s %s\r\n" % tuple(os.isatty(fd) for fd in range(3)))
        size()
        say("\x1b[2J 1 %\r 2 %\n")
    def beat():
        n = 0
        while True:
            n += 1
            threading.Event().wait(0.05)
            if rank == "0" and n % 10 == 0: say("beat\n")
    if rank == "1":
        import subprocess
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    beat()
"""


def below(run: Run) -> list:
    """Everything of the run below its guardian."""
    return [s for s in find_descendants([run.guardian_pid()], read_stats()) if s.alive]


def test_a_terminal_from_its_first_line_to_ctrl_c(tmp_path: Path) -> None:
    program = write(tmp_path / "train.py", AT_TERMINAL)
    with at_a_terminal("--cpus", "2", *QUICK, program, cwd=tmp_path) as (terminal, run):
        terminal.wait_for(b"size 97x31")
        assert b"tty True True True" in terminal.shown
        termios.tcsetwinsize(terminal.master, (40, 120))
        terminal.wait_for(b"size 120x40")

        terminal.press(b"\x1a")  # Ctrl-Z
        launcher = run.popen.pid
        wait_for(lambda: (find_stat(launcher) or 0) and find_stat(launcher).state == "T", "stop")
        assert find_moving(below(run)) == []
        assert len(below(run)) >= 4, "the agent, the ranks, a child in a session of its own"

        before = terminal.shown.count(b"beat")
        run.signal(signal.SIGCONT)  # fg
        wait_for(lambda: terminal.shown.count(b"beat") >= before + 2, "the run to go on")
        assert "T" not in {stat.state for stat in below(run)}

        terminal.press(b"\x03")  # Ctrl-C
        assert run.wait() == 130
        assert run.alive() == []
        raw = (run.dir / "logs" / "rank-0.log").read_bytes()
        assert raw.startswith(b"tty True True True\r\nsize 97x31\n\x1b[2J 1 %\r 2 %\n"), "exact"
        assert b"beat\n" in raw
        assert b"beat\r\n" not in raw
    assert b"beat\r\n" in terminal.shown, "the real terminal's own translation"


def test_a_continue_that_comes_at_once_is_not_missed(tmp_path: Path) -> None:
    with puffrun("--cpus", "2", *QUICK, PROGRAMS / "stay.py", cwd=tmp_path) as run:
        wait_for(lambda: len(run.events("RankStarted")) == 2, "the ranks")
        for _ in range(5):
            run.signal(signal.SIGTSTP)
            run.signal(signal.SIGCONT)
        run.signal(signal.SIGTERM)
        assert run.wait() == 143
        assert run.alive() == []


@pytest.mark.long
def test_a_reader_that_pauses_makes_no_rank_late(tmp_path: Path) -> None:
    """Rank 0 prints more than fits anywhere; rank 1 leaves when it does, before anybody reads."""
    code = """
        import os, threading
        if os.environ["RANK"] == "0":
            for _ in range(40_000): print("x" * 99)
        else:
            while not os.path.getsize(os.environ["PUFFRUN_RUN_DIR"] + "/logs/rank-0.log"):
                threading.Event().wait(0.01)
    """
    program = write(tmp_path / "train.py", code)
    with subprocess.Popen(
        [PUFFRUN, "train", "--cpus", "2", "--exit-timeout", "8", *QUICK, str(program)],
        cwd=tmp_path,
        env=clean_environ(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            events = wait_for(lambda: list(tmp_path.glob(".puffrun/runs/*/events.jsonl")), "a run")
            wait_for(lambda: "RankExited" in events[0].read_text(), "rank 1 to leave")
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(12)  # that nothing happens
            shown, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert len(shown) == 40_000 * 100


@pytest.mark.parametrize(("program", "code"), [("pass", 0), ("raise SystemExit(5)", 5)])
def test_two_full_streams_change_no_exit_code(tmp_path: Path, program: str, code: int) -> None:
    write(tmp_path / "train.py", program)
    done = subprocess.run(
        ["sh", "-c", f"{PUFFRUN} train --cpus 1 train.py >/dev/full 2>/dev/full"],
        cwd=tmp_path,
        env=clean_environ(),
        timeout=90,
        check=False,
    )
    assert done.returncode == code


def test_a_terminal_is_put_back_when_its_program_is_killed(tmp_path: Path) -> None:
    code = r"""
        import os, signal
        os.write(1, b"\x1b[?1049h\x1b[?25l\x1b[31mdashboard")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    program = write(tmp_path / "train.py", code)
    with at_a_terminal("--cpus", "1", *QUICK, program, cwd=tmp_path) as (terminal, run):
        assert run.wait() == 137
        assert (run.dir / "logs" / "rank-0.log").read_bytes().endswith(b"dashboard"), "exact"
    _, _, after = bytes(terminal.shown).partition(b"dashboard")
    restored, card, _ = after.partition(b"was killed by SIGKILL")
    assert card
    assert b"\x1b[?1049l" in restored
    assert b"\x1b[?25h" in restored
    assert b"\x1b[0m" in restored


def test_a_terminal_that_vanishes_ends_a_run_by_sighup_only(tmp_path: Path) -> None:
    program = write(tmp_path / "train.py", AT_TERMINAL)
    master, slave = os.openpty()
    terminal = Terminal(master)
    streams = {"stdin": slave, "stdout": slave, "stderr": slave, "preexec_fn": take_terminal}
    with puffrun("--cpus", "1", *QUICK, program, cwd=tmp_path, **streams) as run:
        os.close(slave)
        while b"beat" not in terminal.shown:
            terminal.shown += os.read(master, 1 << 16)
        os.close(master)
        assert run.wait() == 129
        assert run.report["cause"]["kind"] == "stop"


# signals


def nohup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_signals_for_the_ranks_and_nohup(tmp_path: Path) -> None:
    code = r"""
        import os, signal, sys, threading
        rank = os.environ["RANK"]
        done = threading.Event()
        def note(signum, _):
            print(signal.Signals(signum).name, flush=True)
            if signum == signal.SIGUSR2: done.set()
        for signum in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(signum, note)
        print("ready", flush=True)
        while not done.wait(0.05): pass
    """
    program = write(tmp_path / "train.py", code)
    with puffrun("--cpus", "2", program, cwd=tmp_path, preexec_fn=nohup) as run:

        def both_say(word: str) -> Callable[[], bool]:
            logs = [run.dir / "logs" / f"rank-{rank}.log" for rank in range(2)]
            return lambda: all(log.exists() and word in log.read_text() for log in logs)

        wait_for(both_say("ready"), "both ranks")
        run.signal(signal.SIGHUP)
        run.signal(signal.SIGUSR1)
        wait_for(both_say("SIGUSR1"), "SIGUSR1 to arrive")
        run.signal(signal.SIGUSR2)
        assert run.wait() == 0, run.stderr
        assert both_say("SIGUSR2")()


# programs as people write them


@pytest.mark.parametrize("target", [("train.py",), ("-m", "pack.train")], ids=["script", "module"])
def test_multiprocessing_works_as_ever(tmp_path: Path, target: tuple[str, ...]) -> None:
    """A spawned process imports the main module again; that must not start a second rank."""
    code = r"""
        import multiprocessing, os
        def work(n): return n * n, os.environ["RANK"]
        if __name__ == "__main__":
            for how in ("spawn", "forkserver", "fork"):
                with multiprocessing.get_context(how).Pool(2) as pool:
                    print(how, pool.map(work, [1, 2]), flush=True)
    """
    write(tmp_path / "train.py", code)
    write(tmp_path / "pack" / "train.py", code)
    with puffrun("--cpus", "1", *target, cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr + run.log(0)
        result = [(1, "0"), (4, "0")]
        lines = [f"{how} {result}" for how in ("spawn", "forkserver", "fork")]
        assert run.log(0).splitlines() == lines


def test_a_program_with_record_and_a_group(tmp_path: Path) -> None:
    """`@record`, gloo and a rank that raises: the report names it, and shows it again."""
    code = r"""
        import os
        import torch, torch.distributed as dist
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            dist.init_process_group("gloo")
            one = torch.ones(1)
            dist.all_reduce(one)
            print("sum", int(one), flush=True)
            if dist.get_rank() == 1:
                raise ValueError("recorded twice")
            dist.barrier()

        if __name__ == "__main__":
            main()
    """
    program = write(tmp_path / "train.py", code)
    with puffrun("--cpus", "2", *QUICK, program, cwd=tmp_path) as run:
        assert run.wait() == 1
        assert "sum 2" in run.stdout
        cause = run.report["cause"]
        assert (cause["kind"], cause["rank"]) == ("exception", 1)
        assert cause["summary"] == "ValueError: recorded twice"
        assert "in main" in cause["traceback"]
        assert run.report["ranks"][0]["state"] in {"victim", "killed"}
        again = subprocess.run(
            [PUFFRUN, "report", str(run.dir)],
            cwd=tmp_path,
            env=clean_environ(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "rank 1 failed: ValueError: recorded twice" in again.stdout + again.stderr


def test_a_read_only_directory_with_the_run_elsewhere(tmp_path: Path) -> None:
    """`/proc` takes no file, not even from root."""
    program = write(tmp_path / "train.py", "import os; print(os.getcwd()); raise SystemExit(4)")
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [PUFFRUN, "train", "--cpus", "1", "--run-dir", str(run_dir), str(program)],
        cwd="/proc",
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (4, "/proc\n"), done.stderr
    assert json.loads((run_dir / "report.json").read_text())["exit_code"] == 4


def test_a_run_directory_that_is_removed_meanwhile(tmp_path: Path) -> None:
    with puffrun(
        "--cpus", "2", *QUICK, PROGRAMS / "quirks.py", "remove_run_dir", cwd=tmp_path
    ) as run:
        assert run.wait() == 7, run.stderr
        assert "rank 1 exited 7" in run.stderr
        assert "cannot write" in run.stderr
        assert run.alive() == []


def test_a_full_disk_under_the_run_directory(tmp_path: Path) -> None:
    """What cannot be recorded is not called absent, and no report is promised."""
    disk = tmp_path / "disk"
    disk.mkdir()
    program = PROGRAMS / "quirks.py"
    script = f"""
        mount -t tmpfs -o size=300k tmpfs {disk}
        {PUFFRUN} train --cpus 2 {" ".join(QUICK)} --run-dir {disk}/run {program} fill_disk
        echo "exit $?" >&2
        find {disk} -name '*.tmp' -o -name '.probe*'
        {PUFFRUN} report {disk}/run
    """
    unshare = ["unshare", *(() if os.geteuid() == 0 else ("-r",)), "-m"]
    done = subprocess.run(
        [*unshare, "sh", "-c", script],
        check=False,
        cwd=tmp_path,
        env=clean_environ(COLUMNS="200"),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "rank 1 exited 1, and why could not be recorded: the run directory's disk is full" in (
        done.stderr
    )
    assert "without an exception" not in done.stderr
    assert "report `puffrun report`" not in done.stderr
    assert "exit 1\n" in done.stderr
    assert done.stdout == "rank 0 up\n"
    assert "has no report: its disk is full" in done.stderr


@pytest.mark.parametrize("mode", ["--preload", "--no-preload"])
def test_the_users_warnings_as_errors_reach_the_ranks_and_not_the_agent(
    tmp_path: Path, mode: str
) -> None:
    code = """
        import warnings
        print("up", flush=True)
        warnings.warn("the user's own")
    """
    program = write(tmp_path / "train.py", code)
    env = {"PYTHONWARNINGS": "error"}
    with puffrun(mode, "--cpus", "1", *QUICK, program, cwd=tmp_path, env=env) as run:
        assert run.wait() == 1, run.stderr
        assert "rank 0 failed: UserWarning: the user's own" in run.stderr
        assert run.log(0).startswith("up\n")


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    """One is stopped while the other goes on: ports, files and processes are each run's own."""
    program = PROGRAMS / "stay.py"
    # /proc shows the environment that a process was executed with, which a forked rank was not
    options = ("--cpus", "2", "--no-preload", *QUICK)
    with (
        puffrun(*options, program, "children", cwd=tmp_path) as one,
        puffrun(*options, program, "children", "exit0-on-sigterm", cwd=tmp_path) as two,
    ):
        ranks = [run.rank_pid(rank) for run in (one, two) for rank in range(2)]
        for run in (one, two):
            for rank in range(2):
                wait_for(lambda run=run, rank=rank: "ready" in run.log(rank), "its first line")
        ports = {read_environ(pid)["MASTER_PORT"] for pid in ranks}
        assert len(ports) == 2
        before = {stat.pid for stat in below(two)}
        one.signal(signal.SIGINT)
        assert one.wait() == 130
        assert one.alive() == []
        assert {stat.pid for stat in below(two)} == before
        two.signal(signal.SIGTERM)
        assert two.wait() == 143
        assert two.alive() == []
        assert one.report["run_id"] != two.report["run_id"]


def read_environ(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


# restarts


@pytest.mark.long
def test_restarts_until_it_works(tmp_path: Path) -> None:
    code = r"""
        import os, subprocess, sys
        attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
        print("attempt", attempt, "port", os.environ["MASTER_PORT"], flush=True)
        if rank == "1" and attempt == "0":
            subprocess.Popen(["sleep", "600"], start_new_session=True)
            raise ValueError("the first time")
        if rank == "1" and attempt == "1":
            sys.exit(9)
    """
    program = write(tmp_path / "train.py", code)
    options = ("--cpus", "2", "--max-restarts", "3", *QUICK)
    with puffrun(*options, program, cwd=tmp_path) as run:
        assert run.wait() == 0, run.stderr
        report = run.report
        assert (report["outcome"], report["exit_code"]) == ("success", 0)
        told = [(each["attempt"], each["exit_code"]) for each in report["attempts"]]
        assert told == [(1, 1), (2, 9), (3, 0)]
        assert [a["cause"]["rank"] for a in report["attempts"]] == [1, 1, None]
        said = re.findall(r"^attempt (\d)", run.log(0), re.MULTILINE)
        assert said == ["0", "1", "2"], "one log tells all attempts"
        assert "attempt 1 failed: rank 1: ValueError: the first time" in run.stderr
        assert run.alive() == []


@pytest.mark.long
def test_a_restart_that_gets_nowhere_is_the_last(tmp_path: Path) -> None:
    options = ("--cpus", "1", "--max-restarts", "5", *QUICK)
    with puffrun(*options, PROGRAMS / "fail.py", "0", "exit7", cwd=tmp_path) as run:
        assert run.wait() == 7
        assert len(run.report["attempts"]) == 3  # twice in vain is enough
        assert "got no further" in run.stderr


def test_ctrl_c_while_waiting_for_a_restart(tmp_path: Path) -> None:
    options = ("--cpus", "1", "--max-restarts", "5", *QUICK)
    with puffrun(*options, PROGRAMS / "fail.py", "0", "exit7", cwd=tmp_path) as run:
        wait_for(lambda: run.events("restart"), "the first failure")
        run.signal(signal.SIGINT)
        assert run.wait() == 130
        assert run.report["outcome"] == "stopped"
        assert "before the ranks were started again" in run.report["cause"]["summary"]
        assert run.alive() == []
