"""report.json: written once, whole, and read again."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from puffrun.errors import UsageError
from puffrun.outcome import Outcome
from puffrun.report.schema import outcome_from_json, report_as_json
from puffrun.rundir import RunDir, find_full_disk, write_atomically


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
