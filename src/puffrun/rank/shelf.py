"""Puts imported modules aside until the program imports them itself.

So a forked rank looks as a fresh process does: `"torch" in sys.modules` is false until the
program says `import torch`, and what the program has put into the environment by then is obeyed
where torch can be told later.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Shelf:
    """A finder, first on sys.meta_path, that has some modules ready; and their loader."""

    def __init__(
        self,
        modules: dict[str, ModuleType],
        imported_with: Mapping[str, str],
        then: Callable[[], None],
    ) -> None:
        self._modules = modules
        self._environ = imported_with
        self._then = then
        self._back = False

    @classmethod
    def take(
        cls,
        top_level: Iterable[str],
        imported_with: Mapping[str, str],
        then: Callable[[], None],
    ) -> None:
        """Take modules and all below them out of sys.modules; `then` is called once they are back.

        `imported_with` is the environment in which they were imported. They stay alive to the end:
        a program that never imports them must not see them torn down.
        """
        import ctypes

        names = [name for name in sys.modules if name.partition(".")[0] in set(top_level)]
        modules = {name: sys.modules.pop(name) for name in names}
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(modules))
        sys.meta_path.insert(0, cls(modules, imported_with, then))

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002  # the import system's signature
        target: ModuleType | None = None,  # noqa: ARG002  # the same
    ) -> ModuleSpec | None:
        """Describe a module that is here; looking is not importing."""
        module = self._modules.get(name)
        if module is None:
            return None
        real: Any = getattr(module, "__spec__", None)
        loader: Any = self
        spec = ModuleSpec(name, loader, origin=getattr(real, "origin", None))
        spec.submodule_search_locations = getattr(real, "submodule_search_locations", None)
        spec.has_location = getattr(real, "has_location", False)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Let the import system make one, to be replaced at once."""

    def exec_module(self, module: ModuleType) -> None:  # noqa: ARG002  # the same
        """Put everything back: the import system then takes the real one from sys.modules."""
        sys.modules.update(self._modules)
        if self._back:
            return  # another thread was first
        self._back = True
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        for variable, tell in TOLD_LATER.items():
            value = os.environ.get(variable)
            if value is not None and value != self._environ.get(variable):
                tell(value)
        self._then()


def _set_threads(value: str) -> None:
    if value.isdecimal() and int(value) > 0:
        importlib.import_module("torch").set_num_threads(int(value))


def _set_debug_level(_value: str) -> None:
    importlib.import_module("torch.distributed").set_debug_level_from_env()


# what torch reads when it is imported, and can be told again
TOLD_LATER: dict[str, Callable[[str], None]] = {
    "OMP_NUM_THREADS": _set_threads,
    "MKL_NUM_THREADS": _set_threads,  # beats the other, as it does in torch
    "TORCH_DISTRIBUTED_DEBUG": _set_debug_level,
}
