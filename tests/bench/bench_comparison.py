"""puffrun, torchrun, accelerate launch and torchrunx side by side, from one run.

Writes docs/comparison.md. Each launcher runs with the same interpreter, torch and packages, in
turn. What a peer does better is in the table like all the rest.
"""

# ruff: noqa: E501  # the prose of a page

import os
import platform
import re
import resource
import signal
import statistics
import subprocess
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from bench_end import find_marked
from harness import MARK, clean_environ
from measuring import PROGRAMS, print_table
from peers import PEERS, ensure_peers

from puffrun.process import send_signal

PAGE = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"
START_ROUNDS = {2: 3, 8: 3}
RANKS = 4
LIMIT_S = 40.0  # after the fall; longer than torchrun's fixed 30 s of grace
START_LIMIT_S = 120.0


@dataclass(frozen=True)
class Way:
    """How rank 1 falls. `code` is its own; `named` is what says the cause in the output."""

    program: str
    words: str
    code: int
    named: str


WAYS = [
    Way("exception", "raises", 1, "ValueError: the true cause"),
    Way("SIGKILL", "is killed by SIGKILL", 137, r"SIGKILL|exitcode\s*:\s*-9|signal 9\b"),
    Way("SIGSEGV", "is killed by SIGSEGV", 139, r"SIGSEGV|exitcode\s*:\s*-11|signal 11\b"),
    Way("exit-0", "exits 0, the others wait", 75, r"rank 1 exited 0"),
    Way("session-children", "exits 3; each rank has a child in a new session", 3, EXITED_3 := r"exited 3|exitcode\s*:\s*3"),
    Way("ignore-SIGTERM", "exits 3; the others ignore SIGTERM", 3, EXITED_3),
]  # fmt: skip
UNCOUNTED = ("torchrunx",)  # its agents are nobody's children, so their CPU is in no account
NAMES_RANK = r"(?i)rank[\s:_=]*1\b"


@dataclass(frozen=True)
class End:
    """How a launcher took a fall. `seconds` from the fall to its exit, None: not within LIMIT_S."""

    seconds: float | None
    code: int | None
    left: int
    named: bool


def make_launchers(bin_dir: Path, ranks: int) -> dict[str, list[str]]:
    python = str(bin_dir / "python")
    ours = [python, "-m", "puffrun", "train", "--cpus", str(ranks), "--grace", "2"]
    ours += ["--exit-timeout", "2"]
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    accelerate = [str(bin_dir / "accelerate"), "launch", "--multi_gpu", "--num_machines=1"]
    accelerate += [f"--num_processes={ranks}", "--mixed_precision=no", "--dynamo_backend=no"]
    return {
        "puffrun": ours,
        "puffrun --no-preload": [*ours, "--no-preload"],
        "torchrun": torchrun,
        "accelerate launch": [*accelerate, "--num_cpu_threads_per_process=1"],
        "torchrunx": [python, str(PROGRAMS / "with_torchrunx.py"), str(ranks)],
    }


class Command:
    """One started launcher; whatever happens, nothing of it is left afterwards."""

    def __init__(self, argv: list[str], directory: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.output = directory / "output"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                argv,
                cwd=directory,
                env=clean_environ(**{MARK: self.mark}, OMP_NUM_THREADS="1"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait(self, limit_s: float) -> int | None:
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def sweep(self) -> int:
        """Kill what is left of it, and say how many processes that were besides itself."""
        left = [stat for stat in find_marked(self.mark) if stat.pid != self.process.pid]
        while marked := find_marked(self.mark):
            for stat in marked:
                send_signal(stat, signal.SIGKILL)
            if self.process.poll() is None:
                self.process.wait(10)
        self.process.wait(10)
        return len(left)


def measure_start(bin_dir: Path, ranks: int) -> dict[str, dict[str, float]]:
    """Time a program that initialises gloo, barriers and ends: wall-clock and CPU seconds."""
    taken: dict[str, list[tuple[float, float]]] = {}
    for _ in range(START_ROUNDS[ranks]):
        for name, argv in make_launchers(bin_dir, ranks).items():
            with tempfile.TemporaryDirectory() as directory:
                run = _time([*argv, str(PROGRAMS / "barrier_once.py")], Path(directory))
                taken.setdefault(name, []).append(run)
    return {
        name: {
            "wall_s": round(statistics.median(wall for wall, _ in runs), 2),
            "cpu_s": round(statistics.median(cpu for _, cpu in runs), 2),
        }
        for name, runs in taken.items()
    }


def _time(argv: list[str], directory: Path) -> tuple[float, float]:
    began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = Command(argv, directory)
    try:
        code = command.wait(START_LIMIT_S)
        took = time.monotonic() - began
    finally:
        command.sweep()
    if code != 0:
        raise SystemExit(f"`{' '.join(argv)}` exited {code}:\n{command.output.read_text()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure_end(argv: list[str], way: Way) -> End:
    """Let rank 1 of four fall, and see how the launcher takes it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        command = Command([*argv, str(PROGRAMS / "die.py"), way.program, name], directory)
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not (directory / "fell").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            code = command.wait(LIMIT_S)
            ended_ns = time.monotonic_ns()
        finally:
            left = command.sweep()
        seconds = (ended_ns - int((directory / "fell").read_text())) / 1e9
        said = command.output.read_text(errors="replace")
    named = bool(re.search(way.named, said) and re.search(NAMES_RANK, said))
    if code is None:
        return End(None, None, left, named)
    return End(round(seconds, 2), code if code >= 0 else 128 - code, left, named)


def main() -> dict:
    bin_dir = ensure_peers()
    load = os.getloadavg()[0]
    starts = {ranks: measure_start(bin_dir, ranks) for ranks in START_ROUNDS}
    launchers = make_launchers(bin_dir, RANKS)
    ends = {
        way.program: {name: measure_end(argv, way) for name, argv in launchers.items()}
        for way in WAYS
    }
    PAGE.write_text(render(starts, ends, load))
    title = ["4 ranks, rank 1", *launchers]
    rows = [[w.words, *(_show(end, w) for end in ends[w.program].values())] for w in WAYS]
    rows = [[str(cell).replace("**", "") for cell in row] for row in rows]
    print_table(["start, s", *launchers], _start_rows(starts))
    print_table(title, rows)
    return {
        "start": {str(ranks): measured for ranks, measured in starts.items()},
        "end": {way: {name: asdict(end) for name, end in row.items()} for way, row in ends.items()},
        "load_before": load,
    }


def _start_rows(starts: dict) -> list[list[str]]:
    rows = []
    for ranks, measured in starts.items():
        for what, key in (("whole command", "wall_s"), ("CPU of it all", "cpu_s")):
            cells = [
                "?" if key == "cpu_s" and name in UNCOUNTED else f"{m[key]:.1f}"
                for name, m in measured.items()
            ]
            rows.append([f"{ranks} ranks, {what}", *cells])
    return rows


def _show(end: End, way: Way) -> str:
    """Show one end; what is not as it should be is bold."""
    time_s = f"{end.seconds:.1f} s" if end.seconds is not None else f"**not in {LIMIT_S:.0f} s**"
    parts = [time_s]
    if end.code is not None:
        parts.append(f"exit {end.code}" if end.code == way.code else f"**exit {end.code}**")
    if end.left:
        parts.append(f"**{end.left} left**")
    if not end.named:
        parts.append("**cause not named**")
    return ", ".join(parts)


def _table(title: list[str], rows: list[list[str]]) -> list[str]:
    lines = [title, ["---"] * len(title), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def render(starts: dict, ends: dict[str, dict[str, End]], load: float) -> str:
    """Write the page."""
    names = list(next(iter(starts.values())))
    cores = os.cpu_count()
    peers = ", ".join(f"{name} {number}" for name, number in PEERS.items())
    return "\n".join(
        [
            "# puffrun beside other launchers",
            "Made by `make bench ARGS=comparison`, from one run; do not edit. Each launcher takes its turn with the same",
            f"interpreter and packages: Python {platform.python_version()}, torch {version('torch')}, {peers}; {cores} cores, no GPU,",
            f"load {load:.1f} before it began. Compare columns, not runs: times depend on the machine.",
            "",
            "## Start",
            f"A program that initialises gloo, barriers and ends; medians of {START_ROUNDS[2]}, in seconds. CPU is that of all",
            "processes (not known for torchrunx, whose processes are nobody's children).",
            "",
            *_table(["", *names], _start_rows(starts)),
            "",
            "## A rank falls",
            f"Rank 1 of {RANKS} falls once all are up. Shown: seconds from the fall to the launcher's exit, its exit code, processes left",
            "running, and whether the output names rank 1 and what happened to it. Bold: not the rank's own exit code, something",
            "left, no end, or the cause is not named. puffrun runs with `--grace 2 --exit-timeout 2`; torchrun's grace when a rank fails is",
            "a fixed 30 s, and the others have no such options.",
            "",
            *_table(
                ["rank 1", *names],
                [[way.words, *(_show(e, way) for e in ends[way.program].values())] for way in WAYS],
            ),
            "",
            "## What the others do better",
            *_wins(starts, ends),
            "",
            "Not measured here: torchrun and accelerate run on several nodes and with elastic membership; torchrunx launches a function",
            "and returns its result; accelerate configures DeepSpeed, FSDP and mixed precision too. puffrun does none of that.",
            "",
        ]
    )


def _wins(starts: dict, ends: dict[str, dict[str, End]]) -> list[str]:
    """List where a peer was faster than puffrun as it is by default."""
    lines = []
    for ranks, measured in starts.items():
        ours = measured["puffrun"]["wall_s"]
        lines += [
            f"- {name} started {ranks} ranks in {m['wall_s']:.1f} s, puffrun in {ours:.1f} s."
            for name, m in measured.items()
            if m["wall_s"] < ours and not name.startswith("puffrun")
        ]
    for way in WAYS:
        ours_s = ends[way.program]["puffrun"].seconds
        for name, end in ends[way.program].items():
            if name.startswith("puffrun") or end.seconds is None or ours_s is None:
                continue
            if end.seconds < ours_s:
                lines.append(f"- rank 1 {way.words}: {name} ended after {end.seconds:.1f} s, puffrun after {ours_s:.1f} s.")  # fmt: skip
    return lines or ["In this run, nothing of what was measured."]
