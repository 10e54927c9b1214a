"""What GitHub Actions reads: workflow commands (annotations) and the step summary. Pure.

Format: docs.github.com, "Workflow commands for GitHub Actions". The runner reads commands from
standard error as well, so standard output stays the program's.
"""

import re
from pathlib import Path

from puffrun.console.card.frames import pick_user_frames
from puffrun.console.text import clean_lines, render_duration
from puffrun.errors import PuffrunError
from puffrun.smoke import Finding, SmokeResult

_MAX_MESSAGE = 4000


def render_annotations(result: SmokeResult, workspace: Path | None) -> list[str]:
    """Return an `::error` line for each finding; paths are relative to the workspace."""
    return [
        render_annotation(finding.title, _word(finding), locate(finding), workspace)
        for _, finding in result.findings
    ]


def render_error(error: PuffrunError) -> str:
    """Return the `::error` line of a puffrun that could not do its job."""
    hint = f"\nhint: {error.hint}" if error.hint else ""
    return render_annotation("puffrun smoke", error.message + hint, None, None)


def render_annotation(
    title: str, message: str, place: tuple[str, int | None] | None, workspace: Path | None
) -> str:
    """Write one workflow command; its text keeps to one line by GitHub's own escapes."""
    properties = []
    if place is not None:
        path, line = place
        properties.append(f"file={_escape_property(_shown_path(path, workspace))}")
        properties += [f"line={line}"] if line else []
    properties.append(f"title={_escape_property(_clean(title))}")
    return f"::error {','.join(properties)}::{_escape(_clean(message)[:_MAX_MESSAGE])}"


def locate(finding: Finding) -> tuple[str, int | None] | None:
    """Find the place of a finding: its own, else the last frame in the user's code."""
    if finding.path:
        return finding.path, finding.line
    frames = pick_user_frames(finding.frames)
    return (frames[-1].path, frames[-1].line) if frames else None


def _word(finding: Finding) -> str:
    hint = f"\nhint: {finding.hint}" if finding.hint else ""
    return (finding.message or finding.title) + hint


def _clean(text: str) -> str:
    return "\n".join(clean_lines(text))


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


def _shown_path(path: str, workspace: Path | None) -> str:
    if workspace is not None and Path(path).is_relative_to(workspace):
        return str(Path(path).relative_to(workspace))
    return path


def render_summary(result: SmokeResult, name: str, log_tail: tuple[str, ...] = ()) -> str:
    """Return the Markdown of the step summary."""
    mark = "🟢 green" if result.green else f"🔴 red, exit {result.exit_code}"
    rows = [
        f"| {_cell(check.name)} | {_state(check.asked, green=check.green)} | {_cell(check.said)} |"
        for check in result.checks
    ]
    lines = [
        f"### puffrun {name}: {mark} in {render_duration(result.duration_s)}",
        "",
        "| check | | what was found |",
        "|---|---|---|",
        *rows,
    ]
    if result.facts:
        lines += ["", *(f"- `{key}` {_cell(value)}" for key, value in result.facts.items())]
    for _, finding in result.findings:
        if finding.message:
            lines += ["", f"**{_cell(finding.title)}**", *_fence(_clean(finding.message))]
    if log_tail and not result.green:
        lines += ["", "Last output:", *_fence("\n".join(_clean(line) for line in log_tail))]
    return "\n".join(lines) + "\n\n"


def _state(asked: bool, *, green: bool) -> str:  # noqa: FBT001 - the two states of a check
    return ("✅" if green else "❌") if asked else "-"


def _fence(text: str) -> list[str]:
    """Fence foreign text with more backticks than it has in a row."""
    most = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, most + 1)
    return [fence + "text", text, fence]


def _cell(text: str) -> str:
    return _clean(text).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
