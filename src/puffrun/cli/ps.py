"""`puffrun ps`: the live runs of this machine."""

import json
import math
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from puffrun.cli.caller import Caller
from puffrun.cli.standard_streams import write_stdout
from puffrun.console.runs import render_runs
from puffrun.evidence import LiveRun, find_live_runs


def ps(
    ctx: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, one object a run.")] = False,
) -> int:
    """List the live runs of this machine, as far as they are this user's."""
    caller: Caller = ctx.obj
    runs = find_live_runs()
    if as_json:
        lines = [json.dumps(_as_json(run), allow_nan=False) + "\n" for run in runs]
        return write_stdout("".join(lines))
    return write_stdout("\n".join(render_runs(runs, time.time_ns(), caller.cwd)) + "\n")


def _as_json(run: LiveRun) -> dict[str, Any]:
    beat = run.heartbeat
    return {
        "run_id": run.run_id,
        "program": run.plan.get("program"),
        "run_dir": str(run.run_dir.path),
        "state": run.state,
        "world_size": run.world_size,
        "ranks": {str(rank): pid for rank, pid in run.rank_pids.items()},
        "stopped_ranks": list(run.stopped_ranks),
        "started_at": run.started_at,
        "last_output_at": run.last_output_at,
        "step": beat.step if beat else None,
        "progress_at": beat.at if beat else None,
        "metrics": _finite(beat.metrics) if beat else {},
    }


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Replace what JSON has no number for (NaN, infinity) by null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
