"""Finding the run that the user means: the last one, by its id, the start of it, or a path."""

import difflib
from pathlib import Path

from puffrun.errors import UsageError
from puffrun.rundir import RunDir, last_path, runs_dir


def find_run(state_dir: Path, name: str | Path | None = None) -> RunDir:
    """Find a run by its id, the start of its id, or a path; None is the last one.

    Raises UsageError that names the nearest id when there is no such run.
    """
    if name is None:
        return _find_last(state_dir)
    by_path = _find_by_path(Path(name))
    if by_path is not None:
        return by_path
    ids = _known_ids(state_dir)
    matches = [run_id for run_id in ids if run_id.startswith(str(name))] if str(name) else []
    if str(name) in ids or len(matches) == 1:
        return RunDir(runs_dir(state_dir) / (str(name) if str(name) in ids else matches[0]))
    raise _no_such_run(state_dir, str(name), matches or ids, is_ambiguous=bool(matches))


def _find_last(state_dir: Path) -> RunDir:
    """Follow the `last` link; where it is missing or dangles, take the newest directory."""
    link = last_path(state_dir)
    if link.is_dir():
        return RunDir(link.resolve())
    ids = _known_ids(state_dir)
    if not ids:
        raise UsageError(f"there is no run yet in `{state_dir}`", hint="`puffrun train` makes one")
    return RunDir(runs_dir(state_dir) / ids[0])


def _find_by_path(path: Path) -> RunDir | None:
    """Take a run directory, or a file in it such as report.json, as the run."""
    run_dir = RunDir(path.parent if path.is_file() else path)
    if run_dir.report_path.is_file() or run_dir.plan_path.is_file():
        return RunDir(run_dir.path.resolve())
    return None


def _known_ids(state_dir: Path) -> list[str]:
    """List the run ids of a project, newest first."""
    try:
        dirs = [path for path in runs_dir(state_dir).iterdir() if path.is_dir()]
        return [path.name for path in sorted(dirs, key=lambda d: -d.stat().st_mtime_ns)]
    except OSError:
        return []


def _no_such_run(state_dir: Path, name: str, ids: list[str], *, is_ambiguous: bool) -> UsageError:
    where = runs_dir(state_dir)
    if is_ambiguous:
        shown = ", ".join(ids[:4]) + (", …" if ids[4:] else "")
        return UsageError(f"`{name}` begins {len(ids)} runs: {shown}", hint="give more of the id")
    if not ids:
        return UsageError(f"no run `{name}`: there is no run yet in `{where}`")
    nearest = (difflib.get_close_matches(name, ids, n=1, cutoff=0.0) or ids)[0]
    return UsageError(f"no run `{name}` in `{where}`", hint=f"`puffrun report {nearest}`")
