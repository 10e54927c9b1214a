import pytest

from puffrun.console.text import (
    clean_line,
    clean_lines,
    count_cells,
    render_count,
    render_duration,
    shorten,
    wrap,
    wrap_within,
)

DURATIONS = [
    (-1, "0.0 s"),
    (0.04, "0.0 s"),
    (4.1, "4.1 s"),
    (9.94, "9.9 s"),
    (9.96, "10 s"),
    (41, "41 s"),
    (119, "119 s"),
    (120, "2 min"),
    (41 * 60, "41 min"),
    (3569, "59 min"),
    (3570, "1 h"),
    (3600, "1 h"),
    (8040, "2 h 14 min"),
    (86_399, "24 h"),
    (86_400, "1 d"),
    (3 * 86_400 + 4 * 3600, "3 d 4 h"),
]


@pytest.mark.parametrize(("seconds", "text"), DURATIONS)
def test_durations_are_human(seconds, text):
    assert render_duration(seconds) == text


def test_counts():
    assert render_count(1, "rank") == "1 rank"
    assert render_count(0, "rank") == "0 ranks"
    assert render_count(2, "process", "processes") == "2 processes"


FOREIGN = [
    ("plain", "plain"),
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b[2J\x1b[1;1Hhome", "home"),
    ("\x1b]0;evil title\x07after", "after"),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1bPq#0\x1b\\sixel", "sixel"),
    ("\x1b", ""),
    ("\x1bcreset", "reset"),
    (" 10%\r 50%\r100% done\r\n", "100% done"),
    ("bell\x07back\x08", "bell\ufffdback\ufffd"),
    ("\x9b31m", "\ufffd31m"),
    ("a\tb", "a       b"),
    ("\u202egnp.exe", "\ufffdgnp.exe"),
    ("half \udce2", "half \ufffd"),
    ("one\u2028two", "one\ufffdtwo"),
    ("trailing   ", "trailing"),
]


@pytest.mark.parametrize(("text", "clean"), FOREIGN)
def test_foreign_text_cannot_act_on_the_terminal(text, clean):
    assert clean_line(text) == clean


def test_lines_are_split_at_newlines_only():
    assert clean_lines("a\nb\x0bc\r\n") == ["a", "b\ufffdc", ""]


CELLS = [("abc", 3), ("報告", 4), ("e\u0301", 1), ("🚗", 2), ("", 0), ("a…", 2)]


@pytest.mark.parametrize(("text", "cells"), CELLS)
def test_cells_are_terminal_columns(text, cells):
    assert count_cells(text) == cells


SHORTENED = [
    ("exactly ten", 11, "exactly ten"),
    ("exactly ten", 10, "exactly t…"),
    ("報告報告", 5, "報告…"),
    ("報告報告", 4, "報…"),
    ("🚗🚗", 1, "…"),
]


@pytest.mark.parametrize(("text", "width", "short"), SHORTENED)
def test_shortened_text_fits(text, width, short):
    assert shorten(text, width) == short
    assert count_cells(shorten(text, width)) <= width


def test_wrapping_loses_nothing():
    path = "/a/very/long/path/that/does/not/fit/anywhere.log"
    assert "".join(line.strip() for line in wrap(path, 20)) == path
    assert wrap("報告報告報告" * 3, 20) == ["報告報告報告報告報告", "  報告報告報告報告"]
    assert wrap("a b", 20, indent="> ", hanging="") == ["> a b"]
    assert wrap_within("word " * 100, 30, 2, indent="", hanging="  ")[-1].endswith(" …")
    assert len(wrap_within("word " * 100, 30, 2, indent="", hanging="  ")) == 2
    assert wrap_within("x" * 5000, 30, 2, indent="", hanging="") == ["x" * 30, "x" * 27 + " …"]
