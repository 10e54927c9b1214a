"""Looks at the files that a plan refers to, so that nothing is started that cannot run."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from puffrun.config import hint_nearest, name_nearest
from puffrun.errors import UsageError
from puffrun.plan.launch_plan import LaunchPlan
from puffrun.plan.target_module import check_module, find_rank_path
from puffrun.rundir import check_run_dir


def check_plan(plan: LaunchPlan, launcher_path: Sequence[str]) -> None:
    """Refuse a plan whose program, directory or run directory cannot work. Starts nothing.

    `launcher_path` is `sys.path` of this process, whose packages the ranks share.

    Raises:
        UsageError: names the culprit.
    """
    if not plan.cwd.is_dir():
        raise UsageError(f"the ranks' directory {plan.cwd} is no directory")
    target = plan.argv[2]
    if target == "-m":
        check_module(plan.argv[3], find_rank_path(dict(plan.env), plan.cwd, launcher_path))
    else:
        check_script(Path(target), plan.program)
    check_run_dir(plan.run_dir)


def check_script(path: Path, shown: str) -> None:
    """Refuse a script that python could not run; a directory needs a `__main__.py`."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"script {shown} does not exist", hint=_hint_script(path)) from None
    except OSError as error:
        raise UsageError(f"script {shown} cannot be read: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        if not (path / "__main__.py").is_file():
            raise UsageError(
                f"script {shown} is a directory without `__main__.py`",
                hint=_hint_in_directory(path, shown),
            )
    elif not stat.S_ISREG(mode):
        raise UsageError(f"script {shown} is not a regular file")
    if not os.access(path, os.R_OK):
        raise UsageError(f"script {shown} cannot be read: Permission denied")


def _hint_script(path: Path) -> str | None:
    """Name the nearest script beside a missing one; a dotted name was meant as a module."""
    try:
        beside = [p.name for p in path.parent.iterdir() if p.suffix == ".py"]
    except OSError:
        return None
    near = name_nearest(path.name, beside)
    if near is not None:
        return f"did you mean `{near}`?"
    if path.suffix != ".py" and all(part.isidentifier() for part in path.name.split(".")):
        return f"`-m {path.name}` if it is a module"
    if 0 < len(beside) <= 8:  # noqa: PLR2004 - one line
        return hint_nearest(path.name, beside, are="there is" if len(beside) == 1 else "there are")
    return None


def _hint_in_directory(path: Path, shown: str) -> str | None:
    """Name the script in a directory that is most likely meant."""
    scripts = sorted(p.name for p in path.glob("*.py"))
    near = scripts[0] if len(scripts) == 1 else name_nearest("train.py", scripts)
    return f"`{Path(shown) / near}`" if near else None
