"""Why a program cannot be preloaded: in the words that the user reads, or None.

Looked at in the agent, after it has imported torch and before anything is forked.
"""

import importlib.machinery
import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

STARTUP_MODULES = ("sitecustomize", "usercustomize")  # run at the start of each Python process


def find_refusal(argv: Sequence[str]) -> str | None:
    """Say why the ranks of `argv` (python, "-u", target, ...) must be started one by one."""
    return (
        _refuse_program(argv)
        or _refuse_startup_code()
        or _refuse_activity()
        or _refuse_shadows(program_dir(argv))
    )


def program_dir(argv: Sequence[str]) -> str:
    """Return the directory that Python puts first on the program's sys.path."""
    if argv[2] == "-m":
        return os.getcwd()  # noqa: PTH109  # as Python spells it
    path = os.path.realpath(argv[2])
    return path if os.path.isdir(path) else os.path.dirname(path)  # noqa: PTH112, PTH120


def _refuse_program(argv: Sequence[str]) -> str | None:
    if argv[0] != sys.executable or len(argv) < 3 or argv[1] != "-u":  # noqa: PLR2004  # plan.argv
        return f"the ranks run {argv[0]}, puffrun runs {sys.executable}"
    if argv[2].endswith(".pyc"):
        return "the program is compiled"
    return None


def _refuse_startup_code() -> str | None:
    """Refuse what may look at RANK as Python starts; the one of a distribution does not."""
    stdlib = sysconfig.get_path("stdlib")
    for name in STARTUP_MODULES:
        path = getattr(sys.modules.get(name), "__file__", None)
        if path is not None and os.path.dirname(os.path.realpath(path)) != os.path.realpath(stdlib):  # noqa: PTH120
            return f"{path} runs at the start of each rank"
    return None


def _refuse_activity() -> str | None:
    """Refuse to fork what does not survive a fork: threads, tracers, an open GPU."""
    if threading.active_count() > 1:
        names = ", ".join(t.name for t in threading.enumerate() if t.name != "MainThread")
        return f"a thread runs already ({names})"
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return "a debugger, tracer or profiler is active"
    devices = [target for target in _open_files() if target.startswith("/dev/nvidia")]
    return f"{devices[0]} is open already" if devices else None


def _open_files() -> Iterable[str]:
    for path in Path("/proc/self/fd").iterdir():
        try:
            yield str(path.readlink())
        except OSError:  # the one that listed them
            continue


def _refuse_shadows(directory: str) -> str | None:
    """Refuse when a file beside the program would be imported instead of what is loaded."""
    loaded = {name for name in sys.modules if "." not in name}
    beside = importlib.machinery.FileFinder(
        directory,
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (importlib.machinery.SourceFileLoader, importlib.machinery.SOURCE_SUFFIXES),
    )
    for name in sorted(loaded & _names_in(directory)):
        spec = beside.find_spec(name)
        if spec is None or spec.origin is None:
            continue  # a directory without __init__.py hides nothing
        if not _is_same(sys.modules[name], spec.origin):
            return f"{spec.origin} hides Python's own or an installed module `{name}`"
    return None


def _names_in(directory: str) -> set[str]:
    try:
        return {entry.partition(".")[0] for entry in os.listdir(directory)}  # noqa: PTH208
    except OSError:
        return set()


def _is_same(module: ModuleType, path: str) -> bool:
    if module.__name__ == "__main__" or module.__name__ in sys.builtin_module_names:
        return True  # neither is ever looked for in a directory
    loaded = getattr(module, "__file__", None)
    return loaded is not None and os.path.realpath(loaded) == os.path.realpath(path)
