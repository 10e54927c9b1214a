import errno
import io
import os
import pty
import select
import sys
import threading

import pytest

from puffrun.console import Screen, make_screen

CLEAR = "\r\x1b[2K"
DIM, OFF = "\x1b[2m", "\x1b[0m"


def make(*, tty=False, color=False, width=80):
    stream = io.StringIO()
    return stream, Screen(stream, tty=tty, color=color, width=width)


def test_every_line_that_is_said_starts_with_the_name():
    stream, screen = make()
    screen.say("artifact visualize  built in 4.1 s")
    screen.say("one\n  two")
    assert stream.getvalue() == (
        "puffrun  artifact visualize  built in 4.1 s\npuffrun  one\npuffrun    two\n"
    )


def test_raw_lines_are_left_as_they_are():
    stream, screen = make()
    screen.say_raw("a\n\n    b")
    screen.say_lines(["c", "d"])
    assert stream.getvalue() == "a\n\n    b\nc\nd\n"


def test_an_error_has_a_hint_to_type():
    stream, screen = make()
    screen.error("no script `x.py`", "`puffrun train y.py`")
    screen.error("two\nlines \x1b[31m")
    assert stream.getvalue() == (
        "error: no script `x.py`\nhint: `puffrun train y.py`\nerror: two\nlines\n"
    )


def test_colour_is_only_added():
    stream, screen = make(color=True)
    screen.say("built")
    screen.error("no", "yes")
    assert stream.getvalue() == (
        f"{DIM}puffrun{OFF}  built\n\x1b[31merror:{OFF} no\n\x1b[36mhint:{OFF} yes\n"
    )


def test_the_live_line_is_redrawn_and_gives_way():
    stream, screen = make(tty=True)
    screen.live("starting 8 ranks, 1 up")
    screen.live("starting 8 ranks, 1 up")
    screen.live("starting 8 ranks, 5 up")
    screen.say("done")
    screen.say("done again")
    assert stream.getvalue() == (
        f"{CLEAR}puffrun  starting 8 ranks, 1 up{CLEAR}puffrun  starting 8 ranks, 5 up"
        f"{CLEAR}puffrun  done\npuffrun  done again\n"
    )


def test_the_live_line_is_cleared_once():
    stream, screen = make(tty=True)
    screen.clear_live()
    screen.live("x")
    screen.clear_live()
    screen.clear_live()
    assert stream.getvalue() == f"{CLEAR}puffrun  x{CLEAR}"


def test_the_live_line_never_wraps():
    stream, screen = make(tty=True, width=40)
    screen.live("long " * 40)
    (line,) = stream.getvalue().split(CLEAR)[1:]
    assert len(line) <= 39
    assert line.endswith("…")


def test_there_is_no_live_line_off_a_tty():
    stream, screen = make()
    screen.live("starting")
    screen.clear_live()
    screen.say("done")
    assert stream.getvalue() == "puffrun  done\n"


def test_lines_start_anew_after_a_program_left_the_cursor_in_a_line():
    stream, screen = make(tty=True)
    screen.note_cursor(mid_line=True)
    screen.live("not over the program's own line")
    screen.say("one")
    screen.say("two")
    assert stream.getvalue() == "\npuffrun  one\npuffrun  two\n"


def test_what_is_said_cannot_act_on_the_terminal():
    stream, screen = make(tty=True)
    screen.say("a\x1b[2Jb\x07")
    screen.live("c\x1b]0;t\x07d")
    assert stream.getvalue() == f"puffrun  ab\ufffd\n{CLEAR}puffrun  cd"


@pytest.mark.parametrize("code", [errno.EIO, errno.EPIPE, errno.EBADF, errno.ENOSPC])
def test_a_vanished_terminal_makes_the_screen_silent(code):
    class Gone(io.StringIO):
        tries = 0

        def write(self, _):
            self.tries += 1
            raise OSError(code, os.strerror(code))

    stream = Gone()
    screen = Screen(stream, tty=True)
    screen.say("one")
    screen.live("two")
    screen.error("three")
    assert stream.tries == 1


def test_a_closed_stream_is_no_error(monkeypatch):
    stream, screen = make()
    stream.close()
    screen.say("one")
    monkeypatch.setattr(sys, "stderr", None)
    Screen(tty=False).say("two")
    make_screen(None, {}).error("three")


def test_a_closed_pipe_is_no_error():
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        screen = Screen(stream, tty=False)
        screen.say("heard")
        assert os.read(reader, 100) == b"puffrun  heard\n"
        os.close(reader)
        screen.say("unheard")
        screen.say("unheard")


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_full_stream_keeps_nobody_waiting(monkeypatch, is_blocking):
    monkeypatch.setattr("puffrun.console.screen._FULL_STREAM_S", 0.05)
    reader, writer = os.pipe()
    with (
        os.fdopen(reader, "rb", buffering=0) as tail,
        os.fdopen(writer, "w", encoding="utf-8") as stream,
    ):
        os.set_blocking(writer, is_blocking)
        screen = Screen(stream, tty=False)
        screen.say_raw("x" * 200_000)  # more than a pipe holds; returns although nobody reads
        screen.say("lost too, at once")
        while select.select([tail], [], [], 0)[0]:
            tail.read(65_536)
        screen.say("heard again")
        assert tail.read(65_536) == b"puffrun  heard again\n"


def test_a_terminal_that_hangs_up_is_no_error():
    leader, follower = pty.openpty()
    with os.fdopen(follower, "w", encoding="utf-8") as stream:
        screen = make_screen(stream, {"TERM": "xterm"})
        assert screen.tty
        screen.say("heard")
        assert b"heard" in os.read(leader, 100)
        os.close(leader)
        screen.say("unheard")


def test_lines_of_several_threads_do_not_mix():
    reader, writer = os.pipe()
    with (
        os.fdopen(reader, encoding="utf-8") as tail,
        os.fdopen(writer, "w", encoding="utf-8") as stream,
    ):
        screen = Screen(stream, tty=True)
        threads = [
            threading.Thread(target=lambda n=n: [screen.say(f"{n}" * 60) for _ in range(20)])
            for n in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stream.close()
        lines = tail.read().splitlines()
    assert len(lines) == 100
    assert {len(set(line.removeprefix("puffrun  "))) for line in lines} == {1}


def test_what_the_encoding_lacks_is_replaced():
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as tail, os.fdopen(writer, "w", encoding="ascii") as stream:
        Screen(stream, tty=False).say("2 \N{MULTIPLICATION SIGN} python …")
        stream.close()
        assert tail.read() == b"puffrun  2 ? python ?\n"


TERMINALS = [
    ({"TERM": "xterm"}, True, True, True),
    ({"TERM": "xterm", "NO_COLOR": "1"}, True, True, False),
    ({"TERM": "xterm", "NO_COLOR": ""}, True, True, True),
    ({"TERM": "dumb"}, True, False, False),
    ({}, True, False, False),
    ({"TERM": "xterm"}, False, False, False),
]


@pytest.mark.parametrize(("environ", "isatty", "tty", "color"), TERMINALS)
def test_the_environment_decides_on_colour(environ, isatty, tty, color):
    stream = io.StringIO()
    stream.isatty = lambda: isatty
    screen = make_screen(stream, environ)
    assert (screen.tty, screen.paint.color) == (tty, color)


WIDTHS = [({"COLUMNS": "120"}, 120), ({"COLUMNS": "7"}, 40), ({"COLUMNS": "x"}, 100), ({}, 100)]


@pytest.mark.parametrize(("environ", "width"), WIDTHS)
def test_the_width_off_a_terminal(environ, width):
    assert make_screen(io.StringIO(), environ).width == width
