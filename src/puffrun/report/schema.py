"""report.json, schema 1 (docs/report.md): an `Outcome` as plain JSON values, and back."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from puffrun.errors import UsageError
from puffrun.outcome import Outcome
from puffrun.report.decode import DecodeError, decode

SCHEMA = 1
_NEWER_HINT = "read it with the puffrun that wrote it, or open the file itself: it is plain JSON"
_RUBBISH_HINT = "the logs beside it are still whole; `puffrun report RUN` shows another run"


def report_as_json(outcome: Outcome, plan_json: Mapping[str, Any]) -> dict[str, Any]:
    """Return report.json's content; a cause's frames stand in its `detail`."""
    values = dataclasses.asdict(outcome)
    cause = values["cause"]
    if cause is not None:
        frames = cause.pop("frames")
        cause["detail"] |= {"frames": frames} if frames else {}
    report = {
        "schema": SCHEMA,
        "run_id": outcome.run_id,
        "outcome": outcome.kind,
        "exit_code": outcome.exit_code,
        "started_at": outcome.started_at,
        "ended_at": outcome.ended_at,
        "duration_s": outcome.duration_s,
        "cause": cause,
        **{name: values[name] for name in ("ranks", "victims", "artifacts", "hang")},
        **{name: values[name] for name in ("leftovers", "cleaned")},
        "plan": dict(plan_json),
    }
    if outcome.waiting:
        report["waiting"] = values["waiting"]
    if outcome.attempts:
        report["attempts"] = values["attempts"]
    plain: dict[str, Any] = _as_plain(report)
    return plain


def outcome_from_json(report: Any) -> Outcome:
    """Return the `Outcome` that a report.json was made from.

    Raises UsageError when the schema is another one or a field is not what schema 1 says.
    """
    if not isinstance(report, dict) or "schema" not in report:
        raise UsageError("the report has no `schema`, so it is not puffrun's", hint=_RUBBISH_HINT)
    if report["schema"] != SCHEMA:
        found = f"{report['schema']!r:.40}"
        raise UsageError(
            f"the report has schema {found}, this puffrun reads {SCHEMA}", hint=_NEWER_HINT
        )
    try:
        outcome = decode(Outcome, _with_frames({**report, "kind": report.get("outcome")}), "")
    except DecodeError as error:
        reason = str(error).replace("`kind`", "`outcome`")
        raise UsageError(f"the report is damaged: {reason}", hint=_RUBBISH_HINT) from error
    assert isinstance(outcome, Outcome)  # noqa: S101 - narrows decode's Any, not user input
    return outcome


def _with_frames(report: dict[str, Any]) -> dict[str, Any]:
    """Put a cause's frames back from its detail into their own field."""
    cause = report.get("cause")
    if not isinstance(cause, dict) or not isinstance(cause.get("detail"), dict):
        return report
    detail: dict[str, Any] = dict(cause["detail"])
    frames = detail.pop("frames", [])
    return {**report, "cause": {**cause, "frames": frames, "detail": detail}}


def _as_plain(value: Any) -> Any:
    """Make any value fit for strict JSON: whatever stands in `detail`, a report is written."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {_as_text(name): _as_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_as_plain(item) for item in value]
    return _as_text(value)


def _as_text(value: Any) -> str:
    """Return valid Unicode: bytes of a log that are none arrive here as lone surrogates."""
    return str(value).encode("utf-8", "replace").decode("utf-8")
