"""Each rank's standard streams: what they are, where they lead, how they look to the rank."""

import os
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from puffrun.streams import rank_streams as streams
from puffrun.streams.rank_streams import RankStreams, copy_window_size, open_streams

Open = Callable[..., RankStreams]
CLOSED = 99_999  # a descriptor that nobody opens


@pytest.fixture
def opened() -> Iterator[list[int]]:
    """Descriptors to close at the end."""
    fds: list[int] = []
    yield fds
    for fd in set(fds):
        with suppress(OSError):
            os.close(fd)


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch, opened: list[int]) -> Callable[..., None]:
    """Put other descriptors in the place of the launcher's own 0, 1 and 2."""

    def put(stdin: int | None = None, stdout: int | None = None, stderr: int | None = None) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        opened.append(null)
        for name, fd in (("STDIN", stdin), ("STDOUT", stdout), ("STDERR", stderr)):
            monkeypatch.setattr(streams, name, null if fd is None else fd)

    return put


@pytest.fixture
def make(tmp_path: Path, opened: list[int]) -> Open:
    def make(ranks: range = range(2), shown=(0,)) -> RankStreams:
        made = open_streams(ranks, shown, [tmp_path / f"rank-{rank}.log" for rank in ranks])
        opened.extend(channel.source_fd for channel in made.channels)
        opened.extend(fd for triple in made.stdio for fd in triple)
        return made

    return make


def a_pipe(opened: list[int]) -> tuple[int, int]:
    pair = os.pipe()
    opened.extend(pair)
    return pair


def a_terminal(opened: list[int], size: tuple[int, int] = (33, 101)) -> tuple[int, int]:
    master, slave = os.openpty()
    opened.extend((master, slave))
    termios.tcsetwinsize(slave, size)
    return master, slave


def test_a_hidden_rank_writes_straight_into_its_log(console, make: Open, tmp_path: Path) -> None:
    console()
    made = make()
    _, out, err = made.stdio[1]
    os.write(out, b"out ")
    os.write(err, b"err")
    assert (tmp_path / "rank-1.log").read_bytes() == b"out err"
    assert {channel.rank for channel in made.channels} == {0}


@pytest.mark.parametrize(
    ("ranks", "shown", "visible", "prefixed"),
    [
        (range(2), (0,), {0}, False),
        (range(2), (1,), {1}, False),
        (range(2), "all", {0, 1}, True),
        (range(1), "all", {0}, False),
        (range(4), (1, 3), {1, 3}, True),
        (range(4, 8), (0,), set(), False),  # the second node of two
        (range(4, 8), "all", {4, 5, 6, 7}, True),
    ],
)
def test_who_is_shown_and_how(console, make: Open, ranks, shown, visible, prefixed) -> None:
    console()
    made = make(ranks, shown)
    assert {channel.rank for channel in made.channels} == visible
    prefixes = {channel.prefix for channel in made.channels}
    assert prefixes == (
        {f"rank {r} | ".encode() for r in visible} if prefixed else prefixes & {b""}
    )


def test_stdout_and_stderr_stay_apart_where_they_are(console, make: Open, opened) -> None:
    out_console, err_console = a_pipe(opened)[1], a_pipe(opened)[1]
    console(stdout=out_console, stderr=err_console)
    made = make()
    assert [channel.console_fd for channel in made.channels] == [out_console, err_console]
    _, out, err = made.stdio[0]
    os.write(out, b"o")
    os.write(err, b"e")
    assert [os.read(channel.source_fd, 9) for channel in made.channels] == [b"o", b"e"]
    assert len({channel.log_path for channel in made.channels}) == 1


def test_stdout_and_stderr_are_one_stream_where_they_lead_to_one(
    console, make: Open, opened
) -> None:
    """`2>&1`: one pipe keeps the order in which the rank wrote."""
    writer = a_pipe(opened)[1]
    console(stdout=writer, stderr=writer)
    made = make()
    _, out, err = made.stdio[0]
    os.write(out, b"1")
    os.write(err, b"2")
    os.write(out, b"3")
    assert [os.read(channel.source_fd, 9) for channel in made.channels] == [b"123"]


def test_a_terminal_for_a_terminal(console, make: Open, opened) -> None:
    _, slave = a_terminal(opened, (33, 101))
    console(stdout=slave, stderr=slave)
    made = make()
    (channel,) = made.channels
    out = made.stdio[0][1]
    assert os.isatty(out)
    assert tuple(os.get_terminal_size(out)) == (101, 33)
    os.write(out, b"a\n\tb\r\xff")
    assert os.read(channel.source_fd, 99) == b"a\n\tb\r\xff", "byte for byte"
    assert made.tty_fds == (channel.source_fd,)
    termios.tcsetwinsize(slave, (50, 200))
    copy_window_size(slave, made.tty_fds)
    assert tuple(os.get_terminal_size(out)) == (200, 50)


def test_a_terminal_on_one_stream_only(console, make: Open, opened) -> None:
    """`puffrun train 2> err.txt`: rank 0 sees just that."""
    _, slave = a_terminal(opened)
    console(stdout=slave, stderr=a_pipe(opened)[1])
    _, out, err = make().stdio[0]
    assert (os.isatty(out), os.isatty(err)) == (True, False)


def test_prefixed_lines_are_no_terminal(console, make: Open, opened) -> None:
    """Two dashboards cannot redraw one screen."""
    _, slave = a_terminal(opened)
    console(stdout=slave, stderr=slave)
    assert [os.isatty(out) for _, out, _ in make(shown="all").stdio] == [False, False]


def test_a_window_size_that_nobody_has_changes_nothing(make: Open, console, opened) -> None:
    copy_window_size(a_pipe(opened)[0], (a_pipe(opened)[0],))


def test_a_rank_that_is_gone_is_no_trouble_for_the_window_size(console, make: Open, opened) -> None:
    _, slave = a_terminal(opened)
    console(stdout=slave, stderr=slave)
    made = make()
    os.close(made.channels[0].source_fd)
    copy_window_size(slave, made.tty_fds)


def test_stdin_goes_to_rank_0_only(console, make: Open, opened) -> None:
    reader, writer = a_pipe(opened)
    console(stdin=reader)
    made = make(range(3))
    os.write(writer, b"typed")
    assert [os.read(stdin, 9) for stdin, _, _ in reversed(made.stdio)] == [b"", b"", b"typed"]


def test_a_terminal_is_no_stdin_for_a_rank(console, make: Open, opened) -> None:
    """It is not in the foreground: reading would stop it (SIGTTIN), or fail with EIO."""
    _, slave = a_terminal(opened)
    console(stdin=slave)
    assert [os.read(stdin, 9) for stdin, _, _ in make().stdio] == [b"", b""]


def test_on_another_node_nobody_has_stdin(console, make: Open, opened) -> None:
    reader, writer = a_pipe(opened)
    console(stdin=reader)
    os.write(writer, b"typed")
    assert [os.read(stdin, 9) for stdin, _, _ in make(range(2, 4)).stdio] == [b"", b""]


def test_a_closed_console_is_none(console, make: Open) -> None:
    console(stdout=CLOSED, stderr=CLOSED)
    made = make()
    assert {channel.console_fd for channel in made.channels} == {None}
    os.write(made.stdio[0][1], b"x")


def test_the_end_of_the_rank_is_the_end_of_the_stream(console, make: Open) -> None:
    console()
    made = make(shown="all")
    made.close_rank_ends()
    assert [os.read(channel.source_fd, 9) for channel in made.channels] == [b""] * len(
        made.channels
    )


def test_nothing_is_inherited_by_accident(console, make: Open, opened) -> None:
    """A stranger's child that held a rank's end would hide the end of its output."""
    _, slave = a_terminal(opened)
    console(stdout=slave, stderr=slave)
    made = make()
    fds = [channel.source_fd for channel in made.channels]
    fds += [fd for triple in made.stdio for fd in triple]
    assert not any(os.get_inheritable(fd) for fd in fds)
