"""Starts the real `puffrun`, finds what is alive of it, and leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from puffrun.process import ProcStat, find_stat, read_stats, send_signal

PROGRAMS = Path(__file__).parent / "programs"
MARK = "PUFFRUN_TEST_MARK"
# a shell starts background jobs with SIGINT and SIGQUIT ignored; puffrun keeps what it inherits
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)

HANG_LIMIT_S = 90.0  # generous: reaching it is the failure


# torch looks up names as it connects; where a resolver loses packets, that looks like a hang
QUICK_RESOLVER = {"RES_OPTIONS": "timeout:1 attempts:1"}


def clean_environ(**extra: str) -> dict[str, str]:
    """The environment of a plain shell: nothing of an outer launcher, coverage or pytest."""
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in keep if name in os.environ} | QUICK_RESOLVER | extra


@dataclass
class Run:
    """One live or ended `puffrun`. `mark` is inherited by every process of the run."""

    popen: "subprocess.Popen[bytes]"
    mark: str
    dir: Path
    cwd: Path
    out: Path
    err: Path

    @property
    def stderr(self) -> str:
        return self.err.read_text(errors="replace")

    @property
    def stdout(self) -> str:
        return self.out.read_text(errors="replace")

    @property
    def report(self) -> dict:
        return json.loads((self.dir / "report.json").read_text())

    def log(self, rank: int) -> str:
        return (self.dir / "logs" / f"rank-{rank}.log").read_text(errors="replace")

    def events(self, kind: str | None = None) -> list[dict]:
        try:
            lines = (self.dir / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        events = [json.loads(line) for line in lines]
        return [e for e in events if kind is None or e["kind"] == kind]

    def wait(self, timeout_s: float = HANG_LIMIT_S) -> int:
        return self.popen.wait(timeout_s)

    def signal(self, signum: int) -> None:
        self.popen.send_signal(signum)

    def alive(self) -> list[ProcStat]:
        """Every live process that carries the mark, the launcher included."""
        return [stat for stat in read_stats().values() if stat.alive and self._is_ours(stat.pid)]

    def rank_pid(self, rank: int) -> int:
        """The rank's pid, once it has started."""
        return wait_for(
            lambda: next((e["pid"] for e in self.events("RankStarted") if e["rank"] == rank), None),
            f"rank {rank} to start",
        )

    def guardian_pid(self) -> int:
        return wait_for(lambda: self._child_of(self.popen.pid, b"guardian.py"), "the guardian")

    def agent_pid(self) -> int:
        return wait_for(lambda: self._child_of(self.guardian_pid(), b"puffrun/agent/"), "the agent")

    def zygote_pid(self) -> int:
        """The process that ranks are forked from, once it exists; with --preload only."""
        return wait_for(
            lambda: next((e["zygote"] for e in self.events("agent-ready")), None), "the zygote"
        )

    def _child_of(self, pid: int, word: bytes) -> int | None:
        """The child of `pid` with this word in its command line."""
        children = [s.pid for s in read_stats().values() if s.ppid == pid and s.alive]
        return next((child for child in children if word in _command_line(child)), None)

    def _is_ours(self, pid: int) -> bool:
        try:
            return self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(find, what: str, timeout_s: float = HANG_LIMIT_S):
    """Poll for something that the run makes true; returns it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = find()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited {timeout_s:.0f} s in vain for {what}")


@contextmanager
def puffrun(
    *args: str | Path,
    cwd: Path,
    env: dict | None = None,
    command: tuple[str, ...] = (sys.executable, "-m", "puffrun"),
    **popen,
) -> Iterator[Run]:
    """Start `puffrun train --run-dir … ARGS`; whatever happens, nothing of it is left."""
    mark = f"mark-{uuid.uuid4().hex}"
    run_dir = cwd / f"run-{mark[-6:]}"
    out, err = cwd / f"{mark}.out", cwd / f"{mark}.err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen(
            [*command, "train", "--run-dir", str(run_dir), *map(str, args)],
            cwd=cwd,
            env=clean_environ(**{MARK: mark}, **(env or {})),
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": out_file,
                "stderr": err_file,
                "start_new_session": True,
                **popen,
            },
        )
    run = Run(process, mark, run_dir, cwd, out, err)
    try:
        yield run
    finally:
        end(run)


def ask(
    *words: str | Path, cwd: Path, timeout_s: float = 60.0
) -> "subprocess.CompletedProcess[str]":
    """Run a command of puffrun to its end."""
    return subprocess.run(
        [sys.executable, "-m", "puffrun", *map(str, words)],
        check=False,
        cwd=cwd,
        env=clean_environ(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def end(run: Run) -> None:
    """Kill and reap what the test started, by pid and start time."""
    for _ in range(200):
        alive = run.alive()
        if not alive:
            break
        for stat in alive:
            send_signal(stat, signal.SIGKILL)
        time.sleep(0.02)
    run.popen.kill()
    run.popen.wait(10)


def is_gone(pid: int, started: int) -> bool:
    """Whether a process (pid and start time) no longer runs."""
    stat = find_stat(pid)
    return stat is None or stat.started != started or not stat.alive
