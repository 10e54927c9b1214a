"""The end of a card: how long it ran, where to look, and what to type next."""

import shlex
from collections.abc import Mapping
from typing import Any

from puffrun.console.card.plan_facts import RunFacts
from puffrun.console.text import clean_line, render_count, render_duration, shorten
from puffrun.outcome import Outcome
from puffrun.rundir import RunDir

_NOTHING_RAN = ("artifact-failed", "launch-failed")
_ATTEMPTS_SHOWN = 3


def render_footer(outcome: Outcome, facts: RunFacts, width: int) -> list[str]:
    """Return the last lines. Commands and paths are never cut, so that they can be copied."""
    return [
        *render_attempts(outcome, width),
        *_flow(_render_length(outcome, facts), width),
        *_flow(_render_places(outcome, facts), width),
        *_render_commands(outcome, facts),
    ]


def render_attempts(outcome: Outcome, width: int) -> list[str]:
    """Tell the attempts before the last one, in a line."""
    earlier = [_render_attempt(attempt) for attempt in outcome.attempts][:-1]
    if not earlier:
        return []
    shown = "; ".join(earlier[-_ATTEMPTS_SHOWN:])
    line = f"restarted {render_count(len(earlier), 'time')} before: {shown}"
    return [shorten(clean_line(line), width)]


def _render_attempt(attempt: Mapping[str, Any]) -> str:
    summary = str(attempt.get("summary") or "failed").partition("\n")[0]
    cause = attempt.get("cause")
    rank = cause.get("rank") if isinstance(cause, dict) else None
    return summary if rank is None or summary.startswith("rank ") else f"rank {rank}: {summary}"


def _render_length(outcome: Outcome, facts: RunFacts) -> list[str]:
    detail = outcome.cause.detail if outcome.cause else {}
    ran = f"ran {render_duration(outcome.duration_s)}"
    parts = [] if outcome.kind in _NOTHING_RAN else [ran, f"exit code {outcome.exit_code}"]
    checkpoint, written_at = detail.get("checkpoint"), detail.get("checkpoint_at")
    if checkpoint:
        age = ""
        if isinstance(written_at, int):
            age = f" ({render_duration((outcome.ended_at - written_at) / 1e9)} before)"
        parts.append(f"last checkpoint {clean_line(facts.path(str(checkpoint)))}{age}")
    return parts


def _render_places(outcome: Outcome, facts: RunFacts) -> list[str]:
    run_dir = RunDir(facts.run_dir)
    failed = [a for a in outcome.artifacts if a.state == "failed" and a.log_path]
    if failed:
        return [f"log {facts.path(artifact.log_path or '')}" for artifact in failed[:2]]
    parts = [f"logs {facts.path(run_dir.logs_dir)}"]
    if any(result.stack_path for result in outcome.ranks):
        parts.append(f"stacks {facts.path(run_dir.stacks_dir)}")
    if facts.report_command:
        parts.append(f"report `{facts.report_command}`")
    return parts


def _render_commands(outcome: Outcome, facts: RunFacts) -> list[str]:
    failed = [artifact.name for artifact in outcome.artifacts if artifact.state == "failed"]
    if failed:
        return [f"again: {clean_line(facts.build_command)} {shlex.join(failed)}"]
    detail = outcome.cause.detail if outcome.cause else {}
    again = clean_line(str(detail.get("again") or facts.again))
    return [f"again: {again}"] if again else []


def _flow(parts: list[str], width: int) -> list[str]:
    """Put parts on one line, two spaces apart, and on further lines when they do not fit."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += "  " + part
        else:
            lines.append(part)
    return lines
