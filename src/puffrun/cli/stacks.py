"""`puffrun stacks`: the hang verdict of a live run, which goes on."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from puffrun.cli.caller import Caller
from puffrun.cli.options import ConfigOfRuns
from puffrun.cli.standard_streams import write_stdout
from puffrun.config import load_config
from puffrun.console import PREFIX, make_screen
from puffrun.console.runs import render_stacks
from puffrun.diagnose import conclude_hang
from puffrun.errors import UsageError
from puffrun.evidence import LiveRun, collect_evidence, find_live_runs
from puffrun.outcome import Hang
from puffrun.report import find_run


def stacks(
    ctx: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A live run's id, the start of it, or its directory."),
    ] = None,
    *,
    config: ConfigOfRuns = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="As JSON, as report.json has it.")
    ] = False,
) -> int:
    """Say which ranks of a live run wait where, and who is missing; the run goes on.

    Without RUN: the only live run of this machine, or the last one of this project.
    """
    caller: Caller = ctx.obj
    live = _find_live(run, config, caller)
    hang = _ask(live)
    if as_json:
        return write_stdout(json.dumps(dataclasses.asdict(hang)) + "\n")
    screen = make_screen(sys.stdout, caller.environ)
    first, *rest = render_stacks(live, hang, screen.width, caller.cwd)
    start = screen.paint.dim(PREFIX.rstrip()) + "  "
    return write_stdout("\n".join([start + first, *rest, ""]))


def _ask(live: LiveRun) -> Hang:
    evidence = collect_evidence(live.run_dir, live.rank_pids)
    cwd = Path(str(live.plan.get("cwd") or "/"))
    return conclude_hang(evidence, world_size=live.world_size, cwd=cwd)


def _find_live(name: str | None, config: Path | None, caller: Caller) -> LiveRun:
    """Find the live run that is meant.

    Raises:
        UsageError: there is none, several, or it has ended or has no rank yet.
    """
    runs = find_live_runs()
    named = [run for run in runs if name is not None and run.run_id.startswith(name)]
    if name is None and len(runs) == 1:
        named = [runs[0]]
    if len(named) == 1:
        return _checked(named[0])
    if not runs:
        raise UsageError("no live run of this user on this machine", hint="`puffrun report`")
    asked = load_config(config, caller.cwd)
    caller.state_dir = asked.state_dir
    is_path = name is not None and "/" in name
    found = find_run(asked.state_dir, caller.cwd / str(name) if is_path else name)
    path = found.path.resolve()
    match = [run for run in runs if run.run_dir.path.resolve() == path]
    if not match:
        raise UsageError(
            f"run `{path.name}` is not live", hint=f"`puffrun report {path.name}`, or `puffrun ps`"
        )
    return _checked(match[0])


def _checked(run: LiveRun) -> LiveRun:
    if not run.rank_pids:
        raise UsageError(f"run `{run.run_id}` has no rank yet: it is {run.state}", hint="try again")
    return run
