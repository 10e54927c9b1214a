"""The commands, as a table; only the one that is asked for is imported."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any

import typer

from puffrun.package import __version__


@dataclass(frozen=True)
class Command:
    """Where a command's function is, and its line in `puffrun --help`."""

    module: str
    function: str
    help: str
    passes_rest: bool = False  # everything after the first argument goes to somebody else
    epilog: str = ""  # what stands below the options in the command's own help


# \b keeps Typer from filling the lines of a paragraph
_SMOKE_EPILOG = """\b
The gate (--wheel FILE) installs the wheel into a fresh virtual environment outside the
checkout and runs it from an empty directory: -c demo, or -m MODULE of the wheel. It takes
--extra-site, --cpus, --gpus, --steps, --timeout, --stall-timeout, --exit-timeout, --grace,
--allow, --no-progress-check, --junit and --json.

\b
Environment variables
  CUDA_VISIBLE_DEVICES   the gate runs on the GPUs that it leaves, too; empty: on none
  TMPDIR                 where the gate makes its directories; not inside the checkout
  PIP_*                  pip's own settings, such as PIP_INDEX_URL and PIP_CONSTRAINT
  GITHUB_ACTIONS         true: findings become annotations, and a step summary is written
  PUFFRUN_SMOKE=1, PUFFRUN_MAX_STEPS=N   are set for the program that runs
"""

COMMANDS = {
    "train": Command(
        "puffrun.cli.train",
        "train",
        "Build what is stale, then train on all ranks.",
        passes_rest=True,
    ),
    "build-artifacts": Command(
        "puffrun.cli.build",
        "build_artifacts",
        "Build what training needs, once, and say where it is.",
    ),
    "smoke": Command(
        "puffrun.cli.smoke",
        "smoke",
        "A short CPU run for CI, green or red; and the gate for a wheel.",
        passes_rest=True,
        epilog=_SMOKE_EPILOG,
    ),
    "doctor": Command("puffrun.cli.doctor", "doctor", "What would go wrong here, before it does."),
    "report": Command("puffrun.cli.report", "report", "Show a past run again (default: the last)."),
    "ps": Command("puffrun.cli.ps", "ps", "List the live runs of this machine."),
    "stacks": Command(
        "puffrun.cli.stacks",
        "stacks",
        "Say who waits where in a live run, which goes on.",
    ),
}
_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}


def make_app(argv: Sequence[str]) -> typer.Typer:
    """Make the Typer app for a command line."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=_SETTINGS,
        help="Launch multi-rank PyTorch training: built once, never hung, and the true cause.",
    )
    app.callback()(_root)
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name, command in COMMANDS.items():
        function = _load(command) if name == asked else _listed_only
        settings = _SETTINGS | ({"allow_interspersed_args": False} if command.passes_rest else {})
        app.command(
            name, help=command.help, epilog=command.epilog or None, context_settings=settings
        )(function)
    return app


def _load(command: Command) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(import_module(command.module), command.function)
    return function


def _listed_only() -> None:
    """Stand in for a command that is not asked for."""


def _print_version(wanted: bool) -> None:  # noqa: FBT001 - the signature of a Typer callback
    if wanted:
        typer.echo(f"puffrun {__version__}")
        raise typer.Exit


def _root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command."""
