"""The command line: reads argv and the environment, and turns every end into an exit code."""

from puffrun.cli.main import main, run

__all__ = ["main", "run"]
