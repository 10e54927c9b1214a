"""Run by the Python of the gate's environment: imports every module and says where it was found.

Standard library only, run by its path: it must not drag this puffrun into the other one's
environment. Reads `{"modules": […], "forbidden": […], "allowed": […]}` from the file that argv
names, and prints one JSON object.
"""

import importlib
import json
import os
import sys


def look(modules: list[str], forbidden: list[str], allowed: list[str]) -> dict[str, object]:
    """Import the modules; `strangers` are loaded files below a forbidden directory."""
    errors = {}
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - whatever an import raises is the answer
            errors[name] = f"{type(error).__name__}: {error}"
    loaded = [(name, getattr(m, "__file__", None)) for name, m in list(sys.modules.items())]
    files = {name: os.path.realpath(path) for name, path in loaded if path}
    strangers = {
        name: path
        for name, path in files.items()
        if _is_below(path, forbidden) and not _is_below(path, allowed)
    }
    return {"errors": errors, "files": files, "strangers": strangers, "path": sys.path}


def _is_below(path: str, directories: list[str]) -> bool:
    return any(path.startswith(os.path.realpath(d) + os.sep) for d in directories)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as _file:  # noqa: PTH123 - quick to start
        _request = json.load(_file)
    sys.stdout.write(json.dumps(look(**_request)) + "\n")
