"""Finds the config file of a directory and reads it."""

import os
import re
import stat
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from puffrun.config.launch_options import load_launch
from puffrun.config.run_config import RunConfig
from puffrun.config.sections import load_artifacts, load_train
from puffrun.config.table import Table, hint_nearest
from puffrun.errors import UsageError
from puffrun.package import PACKAGE_DIR

STATE_NAME = ".puffrun"
_PYPROJECT = "pyproject.toml"
_PACKAGED = {"demo": PACKAGE_DIR / "demo" / "default.toml"}
_TOP_KEYS = ("root", "train", "launch", "artifacts")


def load_config(path: Path | None, cwd: Path) -> RunConfig:
    """Load the config at `path` (relative to `cwd`), or the one that `cwd` has.

    Discovery: `puffrun.toml`, else `[tool.puffrun]` of `pyproject.toml`, else
    `configs/default.toml`, else an empty config. `demo` names the packaged one.

    Raises:
        UsageError: the file cannot be read, or says something that puffrun does not understand.
    """
    if path is None:
        return _discover(cwd)
    return replace(_load_file(path, cwd), given_as=str(path))


def _load_file(path: Path, cwd: Path) -> RunConfig:
    packaged_path = _PACKAGED.get(str(path))
    if packaged_path is not None and not (cwd / path).is_file():
        values = _load_toml(packaged_path, cwd)
        state_dir = cwd / STATE_NAME
        return _make_config(values, packaged_path, cwd, packaged_path.parent, state_dir)
    found_path = Path(os.path.abspath(cwd / path))  # noqa: PTH100 - a link in the path is meant
    values = _load_toml(found_path, cwd)
    if found_path.name == _PYPROJECT:
        tool = values.get("tool", {})
        if "puffrun" not in tool:
            raise UsageError(f"{_display(found_path, cwd)} has no [tool.puffrun]")
        values = tool["puffrun"]
    return _make_config(values, found_path, cwd)


def _discover(cwd: Path) -> RunConfig:
    if os.path.lexists(cwd / "puffrun.toml"):
        return _load_file(Path("puffrun.toml"), cwd)
    if (cwd / _PYPROJECT).is_file():
        tool = _load_toml(cwd / _PYPROJECT, cwd).get("tool", {})
        if isinstance(tool, dict) and "puffrun" in tool:
            return _load_file(Path(_PYPROJECT), cwd)
    default_path = Path("configs", "default.toml")
    if os.path.lexists(cwd / default_path):
        return _load_file(default_path, cwd)
    return RunConfig(root_dir=cwd, state_dir=cwd / STATE_NAME)


def _load_toml(path: Path, cwd: Path) -> dict[str, Any]:
    """Read a TOML file; every way in which that fails is one line with the file, and the line."""
    name = _display(path, cwd)
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # its runs would lie beside it
            raise UsageError(f"config {name} is not a regular file")
        text = path.read_bytes().decode("utf-8")
        return tomllib.loads(text)
    except FileNotFoundError:
        near = [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else []
        are = "there is" if len(near) == 1 else "there are"
        hint = hint_nearest(path.name, near, are=are) if near else None
        raise UsageError(f"config {name} does not exist", hint=hint) from None
    except OSError as error:
        raise UsageError(f"config {name} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(_word_syntax_error(name, str(error), text)) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UsageError(f"{name}:{line}: not UTF-8 text") from None
    except RecursionError:
        raise UsageError(f"{name}: nested too deep") from None


def _word_syntax_error(name: str, message: str, text: str) -> str:
    """Turn tomllib's `… (at line 3, column 5)` into `file:3: …`."""
    what, _, where = message.rpartition(" (at ")
    at_line = re.match(r"line (\d+)", where)
    line = int(at_line[1]) if at_line else max(1, len(text.splitlines()))
    return f"{name}:{line}: {(what or message)[:1].lower()}{(what or message)[1:]}"


def _make_config(
    values: object,
    path: Path,
    cwd: Path,
    root_dir: Path | None = None,
    state_dir: Path | None = None,
) -> RunConfig:
    """Read the tables of one file; `root_dir` and `state_dir` override where they would be."""
    name = _display(path, cwd)
    if not isinstance(values, dict):
        raise UsageError(f"{name}: [tool.puffrun] must be a table")
    top = Table(values, "[tool.puffrun]" if path.name == _PYPROJECT else "", name)
    top.refuse_unknown(_TOP_KEYS)
    if root_dir is None:
        root_dir = _find_root(top, path)
    artifacts = load_artifacts(top.table("artifacts"))
    return RunConfig(
        root_dir=root_dir,
        state_dir=state_dir or _place_state_dir(path),
        path=path,
        train=load_train(top.table("train"), root_dir, artifacts),
        launch=load_launch(top.table("launch"), root_dir),
        artifacts=artifacts,
    )


def _find_root(top: Table, path: Path) -> Path:
    """Return the absolute directory that relative paths of the config refer to."""
    root = top.text("root")
    if root is None:
        return path.parent
    root_dir = Path(os.path.abspath(path.parent / root))  # noqa: PTH100 - links are kept
    if not root_dir.is_dir():
        raise UsageError(f"{top.file}: `root` is `{root}`, which is no directory")
    return root_dir


def _place_state_dir(path: Path) -> Path:
    """Put `.puffrun` beside the config; beside `configs/` when the config lies in there."""
    home = path.parent
    return (home.parent if home.name == "configs" else home) / STATE_NAME


def _display(path: Path, cwd: Path) -> str:
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)
