"""Benchmark of the artifact phase: contention, kills, and the warm check of 10,000 inputs.

    python tests/bench/bench_artifacts.py [--builders 64] [--kills 0]

Prints a table. Kills are rounds of SIGKILL at random moments; they take about 3 s each.
"""

import argparse
import collections
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from artifact_kills import kill_one_round, make_kill_project
from artifact_project import build, clean_environ, shell, started, write_toml

from puffrun.artifacts import check_artifacts
from puffrun.artifacts.freshness.hashing import RACY_NS
from puffrun.config import load_config

BUILD_S = 2
INPUTS = 10_000
WARM_LIMIT_MS = 150.0
REPEATS = 9


def measure_contention(root: Path, builders: int) -> dict[str, Any]:
    """Start many builders on a stale build that takes two seconds."""
    write_toml(root, shell("thing", f"echo x >> builds; sleep {BUILD_S}; echo x > {{out}}/out"))
    return _start_together(root, builders)


def measure_failing(root: Path, builders: int) -> dict[str, Any]:
    """The same with a compiler that fails after two seconds."""
    (root / "bad.c").write_text("Vec3 origin;\n")
    script = f"echo x >> builds; sleep {BUILD_S}; cc bad.c -o {{out}}/out"
    write_toml(root, shell("thing", script, inputs=("bad.c",)))
    return _start_together(root, builders)


def _start_together(root: Path, builders: int) -> dict[str, Any]:
    begun = time.monotonic()
    with ExitStack() as stack:
        runs = [stack.enter_context(started(root)) for _ in range(builders)]
        codes = collections.Counter(run.wait() for run in runs)
        seconds = time.monotonic() - begun
    return {
        "builders": builders,
        "builds": len((root / "builds").read_text().split()),
        "exit_codes": {str(code): count for code, count in codes.items()},
        "paths": len({run.stdout for run in runs}),
        "with_compiler_error": sum("unknown type name" in run.stderr for run in runs),
        "seconds": round(seconds, 2),
    }


def measure_kills(root: Path, rounds: int) -> dict[str, Any]:
    """Kill builders at random moments; every round asserts that what is left is valid."""
    seed = secrets.randbits(32)
    print(f"kills: seed {seed}", file=sys.stderr)
    project = make_kill_project(root)
    killed: collections.Counter[str] = collections.Counter()
    for number in range(rounds):
        rng = random.Random(f"{seed}-{number}")  # noqa: S311 - to be replayed, not to be secret
        killed[kill_one_round(project, rng, number)] += 1
    return {"rounds": rounds, "killed": dict(killed), "invalid": 0, "hangs": 0, "left": 0}


def measure_warm_check(root: Path) -> dict[str, Any]:
    """Check an artifact with 10,000 inputs whose hashes are remembered."""
    _write_sources(root)
    spec = shell("big", "echo x > {out}/out", inputs=("src/**/*.c", "src/**/*.h"))
    write_toml(root, spec)
    assert build(root).wait() == 0
    while time.time_ns() - (root / "src").stat().st_mtime_ns < 2 * RACY_NS:
        time.sleep(0.1)  # hashes of files this young are not remembered
    assert build(root).wait() == 0
    config = load_config(None, root)
    env = clean_environ()
    wall, cpu = [], []
    for _ in range(REPEATS):
        seconds, cpu_seconds = _time(lambda: check_artifacts(config, None, env=env))
        wall.append(seconds * 1e3)
        cpu.append(cpu_seconds * 1e3)
    assert all(freshness.fresh for freshness in check_artifacts(config, None, env=env))
    return {
        "inputs": INPUTS,
        "median_ms": round(statistics.median(wall), 1),
        "best_ms": round(min(wall), 1),
        "cpu_ms": round(statistics.median(cpu), 1),
        "limit_ms": WARM_LIMIT_MS,
    }


def _write_sources(root: Path) -> None:
    for number in range(INPUTS):
        path = root / "src" / f"d{number % 100}" / f"f{number}.{'ch'[number % 2]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"int x{number};\n" * 20)


def _time(action: Callable[[], object]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def run(*, builders: int = 64, kills: int = 0) -> dict[str, Any]:
    """Measure everything in directories of its own; a JSON value."""
    measures: dict[str, Callable[[Path], dict[str, Any]]] = {
        "contention": lambda root: measure_contention(root, builders),
        "failing": lambda root: measure_failing(root, builders),
        "warm_check": measure_warm_check,
    }
    if kills:
        measures["kills"] = lambda root: measure_kills(root, kills)
    results = {}
    for name, measure in measures.items():
        with tempfile.TemporaryDirectory(prefix="puffrun-bench-") as directory:
            results[name] = measure(Path(directory))
    return results


def render(results: dict[str, Any]) -> str:
    """Lay the results out as a table."""
    lines = [f"{'artifacts':<12} result"]
    for name, values in results.items():
        words = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in values.items())
        lines.append(f"{name:<12} {words}")
    return "\n".join(lines)


def main(*, builders: int = 64, kills: int = 0) -> dict[str, Any]:
    """Measure, print a table, and return what was measured."""
    results = run(builders=builders, kills=kills)
    print(render(results))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--builders", type=int, default=64)
    parser.add_argument("--kills", type=int, default=0)
    main(**vars(parser.parse_args()))
