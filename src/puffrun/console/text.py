"""Words and widths: how ranks, durations and foreign text look on a terminal. All pure."""

import re
import textwrap
import unicodedata

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and their kin: titles, links
    r"|\x1b[ -/]*[0-~]?"  # two-character escapes
)
# C0 and C1 controls, zero-width and direction marks, and lone surrogates: nothing that acts
_UNSAFE = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_MINUTE_S = 60
_HOUR_S = 3600
_DAY_S = 86_400


def clean_line(text: str) -> str:
    """Return one line of foreign text as it would look, without anything that acts on a terminal.

    A progress bar that redraws its line with carriage returns shows its last state.
    """
    line = _ESCAPE_SEQUENCE.sub("", text).rstrip("\r\n")
    line = line.rsplit("\r", 1)[-1]
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", line.expandtabs(8)).rstrip()


def clean_lines(text: str) -> list[str]:
    """Split foreign text at its newlines and clean each line."""
    return [clean_line(line) for line in text.split("\n")]


def count_cells(text: str) -> int:
    """Count a clean text's columns: wide characters take two, combining ones none."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Cut a text to `width` columns; what was cut leaves an ellipsis."""
    if count_cells(text) <= width:
        return text
    used = 1  # the ellipsis
    for index, character in enumerate(text):
        used += _cells(character)
        if used > width:
            return text[:index].rstrip() + "…"
    return text


def wrap(text: str, width: int, *, indent: str = "", hanging: str | None = None) -> list[str]:
    """Break a sentence into lines of at most `width` columns."""
    lines = textwrap.wrap(
        text,
        max(width * len(text) // max(count_cells(text), 1), 10),  # textwrap counts characters
        initial_indent=indent,
        subsequent_indent=indent + "  " if hanging is None else hanging,
        break_on_hyphens=False,
    )
    return [shorten(line, width) for line in lines]


def wrap_within(text: str, width: int, most: int, *, indent: str, hanging: str) -> list[str]:
    """Break a sentence into at most `most` lines; what does not fit leaves an ellipsis."""
    lines = wrap(text, width, indent=indent, hanging=hanging)
    if len(lines) <= most:
        return lines
    return [*lines[: most - 1], shorten(lines[most - 1], width - 2).removesuffix("…") + " …"]


def render_duration(seconds: float) -> str:
    """Say a duration in its two largest units: `0.4 s`, `41 min`, `2 h 14 min`, `3 d 4 h`."""
    seconds = max(seconds, 0.0)
    whole = round(seconds)
    if seconds < 9.95:  # noqa: PLR2004 - rounds to less than 10.0
        return f"{seconds:.1f} s"
    if whole < 2 * _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S - _MINUTE_S // 2:
        return f"{round(whole / _MINUTE_S)} min"
    if whole < _DAY_S:
        minutes = round(whole / _MINUTE_S)
        return _two_units(minutes // 60, "h", minutes % 60, "min")
    hours = round(whole / _HOUR_S)
    return _two_units(hours // 24, "d", hours % 24, "h")


def _two_units(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit}" + (f" {small} {small_unit}" if small else "")


def render_limit(seconds: float) -> str:
    """Say a limit as it was typed: `600 s`, `2.5 s`."""
    return f"{seconds:g} s"


def render_count(number: int, noun: str, plural: str | None = None) -> str:
    """Count things: `1 rank`, `8 ranks`, `2 processes`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
