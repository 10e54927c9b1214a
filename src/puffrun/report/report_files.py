"""Where reports lie: writing one, reading one, and finding the run that the user means."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from puffrun.errors import UsageError
from puffrun.outcome import Outcome
from puffrun.report.schema import outcome_from_json, report_as_json
from puffrun.rundir import RunDir, find_full_disk, last_path, runs_dir, write_atomically


@dataclass(frozen=True)
class Report:
    """A report that was read: the outcome, the plan's JSON, and the file's whole text."""

    outcome: Outcome
    plan: dict[str, Any]
    text: str


def write_report(run_dir: RunDir, outcome: Outcome, plan_json: Mapping[str, Any]) -> None:
    """Write report.json atomically; raises OSError when the disk does not take it."""
    report = report_as_json(outcome, plan_json)
    text = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(run_dir.report_path, text + "\n")


def load_report(run_dir: RunDir) -> Report:
    """Read the report of a run; raises UsageError when there is none or it cannot be read."""
    path = run_dir.report_path
    try:
        text = path.read_text(encoding="utf-8")
        report = json.loads(text)
    except FileNotFoundError as error:
        raise _no_report(run_dir) from error
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"`{path}` could not be read: {reason:.200}",
            hint="`puffrun report RUN` shows another run",
        ) from error
    outcome = outcome_from_json(report)
    plan = report.get("plan")
    return Report(outcome, plan if isinstance(plan, dict) else {}, text)


def _no_report(run_dir: RunDir) -> UsageError:
    why = "it is still going, or puffrun was killed"
    if find_full_disk(run_dir) is not None:
        why = "its disk is full"
    return UsageError(
        f"run `{run_dir.path.name}` has no report: {why}",
        hint=f"what its ranks printed is in `{run_dir.logs_dir}`",
    )


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
