"""Runs at the start of a rank, before user code; then makes way for the user's sitecustomize.

The launcher puts this directory first on the rank's PYTHONPATH. Python imports `sitecustomize`
from it, in the rank and nowhere else: the directory is taken off the path again at once, so that
child processes of the rank never see it. With -S, -I or -E, or in a program that is not Python,
it does not run, and the launcher goes by exit codes and logs alone.
"""

import os
import sys
from types import ModuleType


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
    run_dir, rank = os.environ["PUFFRUN_RUN_DIR"], int(os.environ["RANK"])
    recorder = _load("recorder")
    recorder.install(run_dir, rank)
    _load("server").install(run_dir, rank)
    recorder.note_crashes(f"{run_dir}/ranks/rank-{rank}.crash")


def _load(name: str) -> ModuleType:
    """Load one of our modules by path: the package itself need not be importable here."""
    import importlib.util

    package_dir = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    spec = importlib.util.spec_from_file_location(
        f"_puffrun_{name}",
        os.path.join(package_dir, f"{name}.py"),  # noqa: PTH118
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"puffrun's {name}.py is not there", name=name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    try:
        _start()
    except Exception as error:  # noqa: BLE001  # never in the program's way
        sys.stderr.write(f"puffrun: this rank cannot be watched from inside: {error}\n")
_chain()
