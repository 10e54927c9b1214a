"""`make soak`: random faults at random moments, until told to stop; a seed replays them.

    python tests/soak.py --faults 300 --seed 7 [--jobs 2] [--only 123]

Each fault is drawn from its own number, so `--only N` replays one. What is checked: the run ends
within the limit, nothing of it is left 5 s later, and the cause is the right one.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from faults.matrix import FAULTS
from harness import PROGRAMS, Run, puffrun, wait_for

LIMIT_S = 60.0
LEFT_AFTER_S = 5.0


@dataclass(frozen=True)
class Draw:
    """One drawn fault. `expect` maps (exit code, cause kind or None) → whether it is right."""

    name: str
    program: str
    ranks: int
    options: tuple[str, ...]
    act: Callable[[Run, random.Random], None] | None
    expect: Callable[[int, str | None, int | None], bool]


def pause(rng: random.Random, longest_s: float) -> None:
    time.sleep(rng.uniform(0.0, longest_s))


def kill_launcher(run: Run, rng: random.Random) -> None:
    pause(rng, 3.0)
    run.popen.kill()


def kill_guardian(run: Run, rng: random.Random) -> None:
    pid = run.guardian_pid()
    pause(rng, 3.0)
    kill(pid)


def kill_agent(run: Run, rng: random.Random) -> None:
    pid = run.agent_pid()
    pause(rng, 3.0)
    kill(pid)


def kill_zygote(run: Run, rng: random.Random) -> None:
    pid = run.zygote_pid()
    pause(rng, 3.0)
    kill(pid)


def kill(pid: int, signum: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


def signal_launcher(*signums: int) -> Callable[[Run, random.Random], None]:
    def act(run: Run, rng: random.Random) -> None:
        wait_for(lambda: run.events("run-started"), "the run to start")
        pause(rng, 3.0)
        for signum in signums:
            run.signal(signum)
            pause(rng, 0.2)

    return act


def kill_rank(rank: int, signum: int) -> Callable[[Run, random.Random], None]:
    def act(run: Run, rng: random.Random) -> None:
        pid = run.rank_pid(rank)
        pause(rng, 1.0)
        kill(pid, signum)

    return act


KINDS = ("matrix", "matrix", "rank", "signal", "launcher", "guardian", "agent", "zygote")


def draw(number: int, seed: int, kinds: Sequence[str] = KINDS) -> tuple[Draw, random.Random]:
    """Draw fault `number` of a seed."""
    rng = random.Random(f"{seed}/{number}")
    ranks = rng.choice((1, 2, 2, 4))
    program = rng.choice(("stay.py", "stay.py children", "stay.py ignore-sigterm"))
    quick = ("--grace", "1")
    kind = rng.choice(kinds)
    if kind == "matrix":
        fault = rng.choice([f for f in FAULTS if f.do is None])

        def expect_row(code: int, cause: str | None, rank: int | None) -> bool:
            same_rank = fault.rank is None or rank == fault.rank
            return code == fault.exit_code and cause == fault.kind and same_rank

        return Draw(fault.name, fault.program, fault.ranks, fault.options, None, expect_row), rng
    if kind == "rank":
        rank, signum = rng.randrange(ranks), rng.choice((signal.SIGKILL, signal.SIGSEGV))
        return Draw(
            f"rank {rank} {signum.name}",
            program,
            ranks,
            quick,
            kill_rank(rank, signum),
            lambda code, cause, who: (code, cause, who) == (128 + signum, "signal", rank),
        ), rng
    if kind == "signal":
        first = rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        more = tuple(
            rng.choice((signal.SIGINT, signal.SIGTERM)) for _ in range(rng.choice((0, 1, 2, 9)))
        )
        return Draw(
            f"{first.name} x {1 + len(more)}",
            program,
            ranks,
            quick,
            signal_launcher(first, *more),
            lambda code, cause, _: (code, cause) == (128 + first, "stop"),
        ), rng
    if kind == "launcher":
        return Draw(
            "launcher SIGKILL", program, ranks, quick, kill_launcher, lambda code, *_: code == -9
        ), rng
    act = {"guardian": kill_guardian, "agent": kill_agent, "zygote": kill_zygote}[kind]
    return Draw(
        f"{kind} SIGKILL",
        program,
        ranks,
        quick,
        act,
        lambda code, cause, _: (code, cause) == (73, "agent-lost"),
    ), rng


def play(number: int, seed: int, kinds: Sequence[str]) -> str | None:
    """Play one fault; return what was wrong, or None."""
    drawn, rng = draw(number, seed, kinds)
    with tempfile.TemporaryDirectory() as directory:
        name, *args = drawn.program.split()
        options = ("--cpus", str(drawn.ranks), *drawn.options)
        with puffrun(*options, PROGRAMS / name, *args, cwd=Path(directory)) as run:
            wrong = _play_run(run, drawn, rng)
            if wrong is None:
                return None
            events = "\n".join(map(str, run.events()))
            what = f"#{number} {drawn.name} ({drawn.program}, {drawn.ranks} ranks)"
            return f"{what}: {wrong}\n{run.stderr}\n{events}"


def _play_run(run: Run, drawn: Draw, rng: random.Random) -> str | None:
    try:
        if drawn.act is not None:
            drawn.act(run, rng)
        code = run.wait(LIMIT_S)
    except (subprocess.TimeoutExpired, AssertionError) as error:
        return f"HANG: {error}"
    deadline = time.monotonic() + LEFT_AFTER_S
    while run.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    left = run.alive()
    if left:
        return f"LEFT: {[(stat.pid, stat.name) for stat in left]}"
    cause: dict = {}
    if code != -signal.SIGKILL:
        cause = run.report["cause"] or {}
    if not drawn.expect(code, cause.get("kind"), cause.get("rank")):
        return f"WRONG CAUSE: exit {code}, {cause.get('kind')}, rank {cause.get('rank')}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", type=int, help="replay just this number of the seed")
    parser.add_argument(
        "--kinds",
        help=f"draw only from these, e.g. launcher,guardian,agent ({','.join(KINDS[1:])})",
    )
    options = parser.parse_args()
    kinds = tuple(options.kinds.split(",")) if options.kinds else KINDS
    numbers = range(options.faults) if options.only is None else [options.only]
    print(f"soak: {len(numbers)} faults, seed {options.seed}", flush=True)
    wrong = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for done, problem in enumerate(
            pool.map(lambda n: play(n, options.seed, kinds), numbers), 1
        ):
            if problem:
                wrong.append(problem)
                print(problem, flush=True)
            if done % 25 == 0:
                print(f"soak: {done} done, {len(wrong)} wrong", flush=True)
    kinds = {
        kind: sum(kind in problem for problem in wrong) for kind in ("HANG", "LEFT", "WRONG CAUSE")
    }
    print(
        f"soak: seed {options.seed}: {len(numbers)} faults, {kinds['HANG']} hangs, "
        f"{kinds['LEFT']} with leftovers, {kinds['WRONG CAUSE']} wrong causes"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
