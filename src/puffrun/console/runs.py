"""What `puffrun ps` and `puffrun stacks` show."""

from collections.abc import Sequence
from pathlib import Path

from puffrun.console.card.evidence_lines import render_hang
from puffrun.console.card.plan_facts import relative_path
from puffrun.console.text import clean_line, count_cells, render_duration
from puffrun.evidence import LiveRun
from puffrun.naming import name_ranks
from puffrun.outcome import Hang

_HEAD = ("run", "program", "ranks", "age", "step", "last output", "state", "directory")
_GAP = 3


def render_runs(runs: Sequence[LiveRun], now_ns: int, shown_from: Path) -> list[str]:
    """Draw the live runs as a table, oldest first."""
    if not runs:
        return ["no live run of this user on this machine"]
    rows = [_HEAD, *(_render_run(run, now_ns, shown_from) for run in runs)]
    widths = [max(count_cells(row[i]) for row in rows) for i in range(len(_HEAD))]
    return [
        "".join(
            cell + " " * (width - count_cells(cell) + _GAP)
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _render_run(run: LiveRun, now_ns: int, shown_from: Path) -> tuple[str, ...]:
    step = "-" if run.heartbeat is None else str(run.heartbeat.step)
    stopped = f", {name_ranks(run.stopped_ranks)} stopped" if run.stopped_ranks else ""
    return (
        clean_line(run.run_id),
        clean_line(str(run.plan.get("program") or "-")),
        f"{len(run.rank_pids)} of {run.world_size}",
        _render_age(run.started_at, now_ns),
        step,
        _render_age(run.last_output_at, now_ns, " ago"),
        run.state + stopped,
        clean_line(relative_path(run.run_dir.path, shown_from)),
    )


def _render_age(at: int | None, now_ns: int, end: str = "") -> str:
    return "-" if at is None else render_duration((now_ns - at) / 1e9) + end


def render_stacks(run: LiveRun, hang: Hang, width: int, shown_from: Path) -> list[str]:
    """Draw what a live run is doing at this moment."""
    indent = "    "
    rows = render_hang(hang, width - len(indent))
    sentence = [clean_line(hang.text)] if hang.missing else []
    where = clean_line(relative_path(run.run_dir.stacks_dir, shown_from))
    lines = [f"run {clean_line(run.run_id)}, at this moment; it goes on", ""]
    lines += [indent + line for line in (*sentence, *rows)]
    return [*lines, "", f"{indent}stacks of all ranks: {where}"]
