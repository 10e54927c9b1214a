"""`puffrun doctor`: what would go wrong here, before it does."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from puffrun.cli.caller import Caller
from puffrun.cli.options import ConfigFile
from puffrun.cli.standard_streams import write_stdout
from puffrun.config import load_config
from puffrun.console import make_screen
from puffrun.console.doctor_lines import render_doctor
from puffrun.doctor import Row, detect_facts, examine

SCHEMA = 1
FOUND = 1  # what doctor exits with when there is a problem


def doctor(
    ctx: typer.Context,
    *,
    config: ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> int:
    """Look at the machine and the project. Exits 1 when there is a problem; notes are none."""
    caller: Caller = ctx.obj
    asked = load_config(config, caller.cwd)
    caller.state_dir = asked.state_dir
    rows = examine(detect_facts(asked, caller.environ, sys.executable))
    has_problem = any(row.state == "problem" for row in rows)
    if as_json:
        text = json.dumps(_as_json(rows, has_problem=has_problem))
    else:
        screen = make_screen(sys.stdout, caller.environ)
        text = "\n".join(render_doctor(rows, screen.width, paint=screen.paint))
    return write_stdout(text + "\n") or (FOUND if has_problem else 0)


def _as_json(rows: Sequence[Row], *, has_problem: bool) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "verdict": "problem" if has_problem else "ok",
        "checks": [
            {
                "name": row.name,
                "state": row.state,
                "text": row.text,
                "findings": [asdict(finding) for finding in row.findings],
            }
            for row in rows
        ],
    }
