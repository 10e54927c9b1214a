"""torchrunx launches functions, so this one runs a script: RANKS SCRIPT ARGS."""

import os
import runpy
import sys

import torchrunx


def run_script(argv: list[str]) -> None:
    sys.argv = argv
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    torchrunx.Launcher(
        hostnames=["localhost"],
        workers_per_host=int(sys.argv[1]),
        backend=None,  # the script makes its own process group
        extra_env_vars={name: value for name, value in os.environ.items() if "MARK" in name},
    ).run(run_script, sys.argv[2:])
