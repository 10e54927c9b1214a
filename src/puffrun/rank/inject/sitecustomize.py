"""Runs at the start of a rank, before user code; then makes way for the user's sitecustomize.

The launcher puts this directory first on the rank's PYTHONPATH. Python imports `sitecustomize`
from it, in the rank and nowhere else: the directory is taken off the path again at once, so that
child processes of the rank never see it. With -S, -I or -E, or in a program that is not Python,
it does not run, and the launcher goes by exit codes and logs alone.
"""

import os
import sys


def _leave_no_trace() -> None:
    """Take this directory off sys.path and off the PYTHONPATH that child processes inherit."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  # pathlib is slow to import
    sys.path[:] = [entry for entry in sys.path if entry != here]
    rest = [e for e in os.environ.get("PYTHONPATH", "").split(os.pathsep) if e != here]
    if any(rest):
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)


def _is_rank() -> bool:
    """Whether this process was started by the agent itself, not by a rank."""
    agent = os.environ.get("PUFFRUN_AGENT_PID")
    return agent == str(os.getppid()) and "RANK" in os.environ


def _start() -> None:
    package_dir = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "_puffrun_recorder",
        os.path.join(package_dir, "recorder.py"),  # noqa: PTH118
    )
    if spec is None or spec.loader is None:
        return
    recorder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(recorder)
    recorder.install(os.environ["PUFFRUN_RUN_DIR"], int(os.environ["RANK"]))


def _chain() -> None:
    """Import the user's own sitecustomize, if there is one, in our place."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


_leave_no_trace()
if _is_rank():
    _start()
_chain()
