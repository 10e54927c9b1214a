"""`puffrun report`: show a past run again."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from puffrun.config import load_config
from puffrun.console import Screen, facts_from_json, make_screen, render_card, render_title
from puffrun.report import Report, find_run, load_report
from puffrun.rundir import RunDir


def report(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's id, the start of it, or its directory."),
    ] = None,
    *,
    config: Annotated[
        Path | None,
        typer.Option("-c", "--config", help="The config whose runs are meant.", metavar="FILE"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print report.json instead of the card.")
    ] = False,
) -> None:
    """Show a past run again (default: the last)."""
    cwd = Path.cwd()
    run_dir = _find(run, config, cwd)
    found = load_report(run_dir)
    screen = make_screen(sys.stdout, os.environ)
    if as_json:
        screen.say_raw(found.text.rstrip("\n"))
    else:
        _show(screen, run_dir, found, cwd)


def _find(run: str | None, config: Path | None, cwd: Path) -> RunDir:
    """Find the run; one given as a path needs no config."""
    if run is not None and "/" in run:
        return find_run(cwd / ".puffrun", run)
    return find_run(load_config(config, cwd).state_dir, run)


def _show(screen: Screen, run_dir: RunDir, found: Report, cwd: Path) -> None:
    outcome = found.outcome
    facts = facts_from_json(found.plan, outcome.run_id, run_dir.path, cwd)
    screen.say(render_title(facts))
    screen.say_lines(render_card(outcome, facts, screen.width, paint=screen.paint))
