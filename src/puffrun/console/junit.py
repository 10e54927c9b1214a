"""A verdict as JUnit XML, which every CI system shows. Pure."""

import re
from xml.sax.saxutils import escape, quoteattr

from puffrun.console.text import clean_lines
from puffrun.smoke import Check, Finding, SmokeResult

# what XML 1.0 has no way to write
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(result: SmokeResult, name: str) -> str:
    """Return a test suite with one test case a check."""
    failures = sum(1 for check in result.checks if not check.green)
    skipped = sum(1 for check in result.checks if not check.asked)
    counts = f'tests="{len(result.checks)}" failures="{failures}" errors="0" skipped="{skipped}"'
    time = f'time="{result.duration_s:.3f}"'
    suite = f"puffrun {name}"
    cases = "".join(_render_case(check, suite) for check in result.checks)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<testsuites name={quoteattr(suite)} {counts} {time}>\n"
        f"<testsuite name={quoteattr(suite)} {counts} {time}>\n"
        f"{cases}</testsuite>\n</testsuites>\n"
    )


def _render_case(check: Check, suite: str) -> str:
    start = f'<testcase classname={quoteattr(suite)} name={_attribute(check.name)} time="0"'
    if not check.asked:
        return f"{start}><skipped message={_attribute(check.text)}/></testcase>\n"
    if check.green:
        return f"{start}><system-out>{_text(check.text)}</system-out></testcase>\n"
    text = "\n\n".join(_word(finding) for finding in check.findings)
    failure = f"<failure message={_attribute(check.said)}>{_text(text)}</failure>"
    return f"{start}>{failure}</testcase>\n"


def _word(finding: Finding) -> str:
    place = f"{finding.path}:{finding.line}" if finding.line else finding.path
    hint = f"hint: {finding.hint}" if finding.hint else None
    return "\n".join(part for part in (finding.title, finding.message, place, hint) if part)


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", "\n".join(clean_lines(text)))


def _text(text: str) -> str:
    return escape(_clean(text))


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))
