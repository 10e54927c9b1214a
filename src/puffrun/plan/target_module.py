"""Finds the module that `python -m` would run, without running a line of its packages."""

import os
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from puffrun.config import name_nearest
from puffrun.errors import UsageError


def find_rank_path(
    env: Mapping[str, str], cwd: Path, launcher_path: Sequence[str]
) -> tuple[str, ...]:
    """Return where a rank looks for modules: its directory, PYTHONPATH, then what we have.

    The first entry of our own path is the directory of the puffrun script, which ranks lack.
    """
    python_path = env.get("PYTHONPATH", "").split(os.pathsep) if env.get("PYTHONPATH") else []
    first = [] if env.get("PYTHONSAFEPATH") else [str(cwd)]
    entries = [*first, *(str(cwd / entry) for entry in python_path), *launcher_path[1:]]
    return tuple(dict.fromkeys(e for e in entries if e))


def check_module(name: str, search_path: Sequence[str]) -> None:
    """Refuse a module that `python -m NAME` would not find.

    Raises:
        UsageError: names the part that is missing and what is nearest to it.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"`{name}` is no module name", hint=_hint_name(name))
    if name.endswith(".py") and find_spec(name.removesuffix(".py"), search_path) is not None:
        raise UsageError(f"module {name} was not found", hint=f"`{name}` without `-m`")
    spec: ModuleSpec | None = None
    locations: Sequence[str] = search_path
    whole = ""
    for part in name.split("."):
        parent, whole = whole, f"{whole}.{part}".lstrip(".")
        spec = find_spec(whole, locations) or (None if parent else _find_elsewhere(whole))
        if spec is None:
            raise UsageError(
                _word_missing(name, parent), hint=_hint_module(parent, part, locations)
            )
        if _makes_own_path(spec):
            return
        locations = list(spec.submodule_search_locations or ())
    if locations and find_spec(f"{whole}.__main__", locations) is None:
        raise UsageError(
            f"module {name} is a package without `__main__`, so it cannot be run",
            hint=_hint_module(whole, "train", locations),
        )


def find_spec(name: str, locations: Sequence[str]) -> ModuleSpec | None:
    """Find a module in some directories or archives; portions of a namespace are joined."""
    portions: list[str] = []
    for location in locations:
        finder = pkgutil.get_importer(location)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            portions += spec.submodule_search_locations or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _find_elsewhere(name: str) -> ModuleSpec | None:
    """Ask the other finders: built-in and frozen modules, editable installs with a hook."""
    for finder in sys.meta_path:
        if finder is not PathFinder and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, None)
            if spec is not None:
                return spec
    return None


def _makes_own_path(spec: ModuleSpec) -> bool:
    """Tell whether a package changes where its modules are found, which only running it shows."""
    if not spec.submodule_search_locations or not spec.origin or not spec.has_location:
        return False
    try:
        return b"__path__" in Path(spec.origin).read_bytes()
    except OSError:
        return False


def _word_missing(name: str, parent: str) -> str:
    return f"module {name} was not found" + (f" in package {parent}" if parent else "")


def _hint_name(name: str) -> str | None:
    if name.endswith(".py") or "/" in name:
        return f"`{name}` without `-m` if it is a script"
    return None


def _hint_module(parent: str, part: str, locations: Sequence[str]) -> str | None:
    """Name the nearest module beside a missing one."""
    near = name_nearest(part, {m.name for m in pkgutil.iter_modules(locations)})
    return f"did you mean `-m {parent}.{near}`?".replace(" .", " ") if near else None
