"""`puffrun report`: show a past run again."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from puffrun.cli.caller import Caller
from puffrun.cli.options import ConfigOfRuns
from puffrun.cli.standard_streams import write_stdout
from puffrun.config import load_config
from puffrun.console import PREFIX, facts_from_json, make_screen, render_card, render_title
from puffrun.report import Report, find_run, load_report
from puffrun.rundir import RunDir


def report(
    ctx: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's id, the start of it, or its directory."),
    ] = None,
    *,
    config: ConfigOfRuns = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print report.json instead of the card.")
    ] = False,
) -> int:
    """Show a past run again (default: the last). Exits 0 whatever became of that run."""
    caller: Caller = ctx.obj
    run_dir = _find(run, config, caller)
    found = load_report(run_dir)
    return write_stdout(found.text if as_json else _render(run_dir, found, caller))


def _find(run: str | None, config: Path | None, caller: Caller) -> RunDir:
    """Find the run; one given as a path needs no config."""
    if run is not None and "/" in run:
        return find_run(caller.cwd / ".puffrun", caller.cwd / run)
    asked = load_config(config, caller.cwd)
    caller.state_dir = asked.state_dir
    return find_run(asked.state_dir, run)


def _render(run_dir: RunDir, found: Report, caller: Caller) -> str:
    outcome = found.outcome
    facts = facts_from_json(found.plan, outcome.run_id, run_dir.path, caller.cwd)
    screen = make_screen(sys.stdout, caller.environ)
    title = screen.paint.dim(PREFIX.rstrip()) + "  " + render_title(facts)
    card = render_card(outcome, facts, screen.width, paint=screen.paint)
    return "\n".join([title, *card, ""])
