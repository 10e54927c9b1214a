"""A verdict as JSON, schema 1, and back."""

import json
from dataclasses import asdict
from typing import Any

from puffrun.errors import PuffrunError, StoppedError
from puffrun.smoke.smoke_findings import Check, Finding, SmokeResult

SCHEMA = 1


def verdict_as_json(result: SmokeResult) -> dict[str, Any]:
    """Return the JSON object that `puffrun smoke --json` prints."""
    return {
        "schema": SCHEMA,
        "verdict": "green" if result.green else "red",
        "exit_code": result.exit_code,
        "duration_s": round(result.duration_s, 3),
        "run_id": result.run_id,
        "run_dir": result.run_dir,
        "checks": [_check_as_json(check) for check in result.checks],
        "facts": result.facts,
    }


def make_error_result(error: PuffrunError) -> SmokeResult:
    """Make the verdict of a puffrun that could not do its job: nothing was judged."""
    check = Check("start", "", (Finding(error.message, hint=error.hint),))
    code = 128 + error.signum if isinstance(error, StoppedError) else int(error.exit_code)
    return SmokeResult(code, 0.0, (check,))


def _check_as_json(check: Check) -> dict[str, Any]:
    state = "green" if check.green else "red"
    findings = [_finding_as_json(finding) for finding in check.findings]
    return {
        "name": check.name,
        "state": state if check.asked else "not-asked",
        "text": check.said,
        "findings": findings,
    }


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    values = asdict(finding)
    del values["frames"]
    return values


def read_verdict(text: str) -> tuple[Check, ...] | None:
    """Read the checks from what another puffrun printed; None when that is no verdict."""
    try:
        verdict = json.loads(text.strip().splitlines()[-1])
        if verdict["schema"] != SCHEMA:
            return None
        return tuple(
            Check(
                check["name"],
                check["text"],
                tuple(Finding(**finding) for finding in check["findings"]),
                asked=check["state"] != "not-asked",
            )
            for check in verdict["checks"]
        )
    except (ValueError, IndexError, KeyError, TypeError):
        return None
