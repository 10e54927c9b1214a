"""What the benchmarks share: timing whole commands in turn, and a table."""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

BIN = Path(sys.executable).parent
PROGRAMS = Path(__file__).resolve().parent.parent / "programs"
LIMIT_S = 120.0


def time_command(argv: Sequence[str | Path], cwd: Path, expect: int | None = 0) -> float:
    """Run a command to its end and return its wall-clock seconds."""
    began = time.monotonic()
    process = subprocess.Popen(
        [str(part) for part in argv],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(LIMIT_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    took = time.monotonic() - began
    if expect is not None and code != expect:
        raise SystemExit(f"`{' '.join(map(str, argv))}` exited {code}, not {expect}")
    return took


def time_in_turn(
    commands: Mapping[str, Sequence[str | Path]], cwd: Path, rounds: int, expect: int | None = 0
) -> dict[str, float]:
    """Time commands alternately, so that the machine's moods hit all; medians in seconds."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, argv in commands.items():
            times[name].append(time_command(argv, cwd, expect))
    return {name: round(statistics.median(values), 3) for name, values in times.items()}


def print_table(title: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print aligned columns."""
    cells = [[str(cell) for cell in row] for row in [title, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(title))]
    for row in cells:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )
