"""`python -m puffrun` is `puffrun`."""

from puffrun.cli import run

run()
