"""Options that several commands have, spelt and explained once."""

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[
    Path | None, typer.Option("-c", "--config", metavar="FILE", help="A TOML file, or `demo`.")
]
ConfigOfRuns = Annotated[
    Path | None,
    typer.Option("-c", "--config", metavar="FILE", help="The config whose runs are meant."),
]
IsModule = Annotated[bool, typer.Option("-m", "--module", help="TARGET is a module.")]
