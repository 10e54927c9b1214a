"""What a smoke run ends with: green in one line, or red with every finding. Pure."""

from collections.abc import Iterable

from puffrun.console.paint import Paint
from puffrun.console.text import clean_line, render_duration, wrap_within
from puffrun.smoke import Check, Finding, SmokeResult

_INDENT = "    "
_MESSAGE_LINES = 12


def render_smoke(result: SmokeResult, width: int, *, paint: Paint, name: str) -> list[str]:
    """Return the last lines of a smoke run or of the gate."""
    start = paint.dim("puffrun") + "  "
    after = render_duration(result.duration_s)
    if result.green:
        said = ", ".join(check.text for check in result.checks if check.asked)
        return _hang(start, f"{name} green in {after}  {said}", width)
    count = len(result.findings)
    many = f"{count} findings" if count != 1 else "1 finding"
    lines = [start + paint.red(f"{name} red in {after}  {many}, exit {result.exit_code}")]
    for check, finding in result.findings:
        lines += ["", *_render_finding(check, finding, width, paint)]
    kept = result.facts.get("kept")
    return [*lines, *([f"{_INDENT}everything is in {clean_line(kept)}"] if kept else [])]


def _hang(start: str, text: str, width: int) -> list[str]:
    lines = wrap_within(clean_line(text), width - 9, 4, indent="", hanging="")
    return [start + lines[0], *(" " * 9 + line for line in lines[1:])]


def _render_finding(check: Check, finding: Finding, width: int, paint: Paint) -> list[str]:
    room = width - len(_INDENT)
    title = wrap_within(
        clean_line(f"{check.name}: {finding.title}"), room, 3, indent="", hanging="  "
    )
    lines = [_INDENT + paint.red(line) for line in title]
    if finding.path:
        place = f"{finding.path}:{finding.line}" if finding.line else finding.path
        lines.append(_INDENT + "  " + paint.cyan(clean_line(place)))
    lines += [_INDENT + "  " + line for line in _wrap_message(finding, room - 2)]
    if finding.hint:
        lines.append(f"{_INDENT}  {paint.cyan('hint:')} {clean_line(finding.hint)}")
    return lines


def _wrap_message(finding: Finding, room: int) -> Iterable[str]:
    shown = [line for line in finding.message.splitlines() if line.strip()][-_MESSAGE_LINES:]
    for line in shown:
        if clean_line(line) not in finding.title:
            yield from wrap_within(clean_line(line), room, 3, indent="", hanging="  ")
