"""What `puffrun doctor` prints: a line a check, and what is wrong in three lines each. Pure."""

from collections.abc import Sequence

from puffrun.console.paint import Paint
from puffrun.console.text import clean_line, render_count, wrap_within
from puffrun.doctor import Finding, Row

_NAME_COLUMN = 15


def render_doctor(rows: Sequence[Row], width: int, *, paint: Paint) -> list[str]:
    """Return all lines; the last one counts."""
    lines: list[str] = []
    for row in rows:
        name = row.name.ljust(_NAME_COLUMN)
        if row.state == "ok":
            lines.append(paint.dim("ok       ") + paint.cyan(name) + clean_line(row.text))
            continue
        for finding in row.findings:
            lines += _render_finding(name, finding, width, paint)
    return [*lines, "", _count(rows)]


def _render_finding(name: str, finding: Finding, width: int, paint: Paint) -> list[str]:
    level = finding.level.ljust(9)
    start = (paint.red(level) if finding.level == "problem" else paint.bold(level)) + paint.cyan(
        name
    )
    indent = " " * (9 + _NAME_COLUMN)
    first, *rest = wrap_within(
        clean_line(finding.found), max(width - len(indent), 30), 4, indent="", hanging=""
    )
    why = wrap_within(
        clean_line(finding.why), max(width - len(indent) - 5, 30), 3, indent="", hanging=""
    )
    return [
        start + first,
        *(indent + line for line in rest),
        *(indent + paint.dim("why  " if not i else "     ") + line for i, line in enumerate(why)),
        f"{indent}{paint.dim('type ')}{clean_line(finding.fix)}",
    ]


def _count(rows: Sequence[Row]) -> str:
    levels = [finding.level for row in rows for finding in row.findings]
    problems, notes = levels.count("problem"), levels.count("note")
    checks = render_count(len(rows), "check")
    if not levels:
        return f"{checks}, nothing found"
    return f"{checks}, {render_count(problems, 'problem')}, {render_count(notes, 'note')}"
