"""The pump on real pipes and pseudo-terminals: every byte is logged, and nothing can hang it."""

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness import HANG_LIMIT_S, wait_for

from puffrun.streams.pump import MAX_BACKLOG, MAX_LINE, LineSplitter, Pump
from puffrun.streams.rank_streams import Channel

BIG = bytes(range(256)) * 40_960  # 10 MiB


# LineSplitter


@pytest.mark.parametrize(
    ("chunks", "shown"),
    [
        ([b""], b""),
        ([b"a\n"], b"> a\n"),
        ([b"a"], b"> a\n"),
        ([b"a", b"b\nc"], b"> ab\n> c\n"),
        ([b"a\n", b"\n", b"b\n"], b"> a\n> \n> b\n"),
        ([b"a\r\nb\r\n"], b"> a\n> b\n"),
        ([b"a\r", b"\nb\n"], b"> a\n> b\n"),
        ([b" 1 %\r 2 %\r", b" 3 %\n"], b">  3 %\n"),
        ([b" 1 %\r 2 %\r"], b">  2 %\n"),
        ([b"\xff\x00\n"], b"> \xff\x00\n"),
        (["ä\n".encode()[:1], "ä\n".encode()[1:]], "> ä\n".encode()),
        ([b"x" * 5] * 3 + [b"\n"], b"> " + b"x" * 15 + b"\n"),
    ],
)
def test_lines_are_whole_and_prefixed(chunks: list[bytes], shown: bytes) -> None:
    splitter = LineSplitter(b"> ")
    assert b"".join(splitter.feed(chunk) for chunk in chunks) + splitter.flush() == shown
    assert splitter.flush() == b""


def test_how_the_bytes_are_cut_does_not_matter() -> None:
    text = b"one\r\ntwo\n\n 1 %\r 2 %\nlast"
    whole = LineSplitter(b"| ")
    expected = whole.feed(text) + whole.flush()
    for size in range(1, len(text)):
        splitter = LineSplitter(b"| ")
        cut = [splitter.feed(text[i : i + size]) for i in range(0, len(text), size)]
        assert b"".join(cut) + splitter.flush() == expected


def test_a_line_without_an_end_is_shown_in_parts() -> None:
    splitter = LineSplitter(b"> ")
    shown = splitter.feed(b"x" * (MAX_LINE + 1))
    assert shown == b"> " + b"x" * (MAX_LINE + 1) + b"\n"
    assert splitter.feed(b"y\n") == b"> y\n"


# the pump


@dataclass
class Rig:
    """A pump over pipes: `writers` are the ranks' ends, `console_reader` is the terminal's side."""

    directory: Path
    channels: list[Channel] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)
    console_reader: int | None = None
    console_fd: int | None = None
    notes: list[str] = field(default_factory=list)
    outputs: list[bool] = field(default_factory=list)

    def log(self, rank: int = 0) -> bytes:
        return self.log_path(rank).read_bytes()

    @property
    def size(self) -> int:
        return self.log_path().stat().st_size

    def log_path(self, rank: int = 0) -> Path:
        return self.directory / f"rank-{rank}.log"

    def open_console(self) -> None:
        self.console_reader, self.console_fd = os.pipe()

    def open_file_console(self) -> Path:
        path = self.directory / "console"
        self.console_fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        return path

    def add(self, rank: int = 0, prefix: bytes = b"", *, tty: bool = False, **change) -> int:
        source, writer = os.openpty() if tty else os.pipe()
        path = change.pop("log_path", self.log_path(rank))
        self.channels.append(Channel(rank, source, path, self.console_fd, prefix, tty))
        self.writers.append(writer)
        return writer

    def start(self) -> Pump:
        return Pump(self.channels, lambda: self.outputs.append(True), self.notes.append)

    def close_writer(self, fd: int) -> None:
        self.writers.remove(fd)
        os.close(fd)

    def close(self) -> None:
        for fd in (*self.writers, self.console_fd, self.console_reader):
            if fd is not None:
                os.close(fd)
        self.writers, self.console_fd, self.console_reader = [], None, None

    def drop_console_reader(self) -> None:
        assert self.console_reader is not None
        os.close(self.console_reader)
        self.console_reader = None


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    try:
        yield rig
    finally:
        rig.close()


@contextmanager
def reading(fd: int) -> Iterator[bytearray]:
    """Read a console until its last writer is gone."""
    got = bytearray()

    def read() -> None:
        while data := os.read(fd, 1 << 16):
            got.extend(data)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield got
    finally:
        thread.join(60)
        assert not thread.is_alive()


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def count_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def write_and_close(rig: Rig, fd: int, data: bytes) -> threading.Thread:
    def write() -> None:
        write_all(fd, data)
        rig.close_writer(fd)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def finish(rig: Rig, pump: Pump) -> None:
    """What the launcher does once the guardian has proved that no writer is left."""
    for fd in list(rig.writers):
        rig.close_writer(fd)
    pump.finish()


@pytest.mark.parametrize(
    "data",
    [b"", b"x", b"a\r b\r c\n", b"no final newline", b"\x00\xff\xfe\r\n\x1b[2J", BIG],
    ids=["nothing", "a byte", "redrawn", "unfinished", "binary", "10 MB"],
)
def test_log_and_console_get_every_byte(rig: Rig, data: bytes) -> None:
    rig.open_console()
    writer = rig.add()
    pump = rig.start()
    assert rig.console_reader is not None
    assert rig.console_fd is not None
    with reading(rig.console_reader) as got:
        thread = write_and_close(rig, writer, data)
        thread.join(60)
        finish(rig, pump)
        os.close(rig.console_fd)
        rig.console_fd = None
    assert rig.log() == data
    assert bytes(got) == data
    assert rig.outputs == ([True] if data else [])


def test_a_console_that_is_a_file_gets_every_byte(rig: Rig) -> None:
    """`puffrun train > out.txt`, with a burst of output right before the end."""
    path = rig.open_file_console()
    writer = rig.add()
    pump = rig.start()
    write_and_close(rig, writer, BIG).join(60)
    finish(rig, pump)
    assert rig.log() == BIG
    assert path.read_bytes() == BIG


def test_a_slow_console_gets_the_rest_after_the_run_has_ended(rig: Rig) -> None:
    rig.open_console()
    writer = rig.add()
    pump = rig.start()
    data = BIG[: MAX_BACKLOG + (1 << 17)]
    writing = write_and_close(rig, writer, data)
    assert rig.console_reader is not None
    got = bytearray(os.read(rig.console_reader, 1))  # then it takes nothing for a while
    writing.join(60)
    ending = threading.Thread(target=finish, args=(rig, pump))
    ending.start()
    while len(got) < len(data):
        got += os.read(rig.console_reader, 1 << 16)
    ending.join(60)
    assert bytes(got) == data


def test_a_console_that_is_never_read_costs_the_log_nothing(rig: Rig) -> None:
    rig.open_console()
    writer = rig.add()
    pump = rig.start()
    writing = write_and_close(rig, writer, BIG)
    wait_for(lambda: rig.size >= MAX_BACKLOG, "the backlog to fill up")
    assert writing.is_alive(), "the rank waits for its terminal, as without us"
    pump.sync()  # the watchdog does not
    assert writing.is_alive()
    rig.drop_console_reader()
    writing.join(60)
    finish(rig, pump)
    assert rig.log() == BIG


def test_a_console_that_is_never_read_at_the_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the run's processes are dead: what they wrote is read, and logged, to the end."""
    monkeypatch.setattr("puffrun.streams.pump.LAST_WORDS_S", 0.2)
    rig.open_console()
    writer = rig.add()
    pump = rig.start()
    os.set_blocking(writer, False)
    written = 0

    def fill() -> bool:
        nonlocal written
        try:
            written += os.write(writer, BIG[written : written + 65536])
        except BlockingIOError:
            return written >= MAX_BACKLOG and rig.size < written
        return False

    wait_for(fill, "both the backlog and the pipe to be full")
    finish(rig, pump)
    assert rig.log() == BIG[:written]


@pytest.mark.parametrize("tty", [False, True], ids=["EPIPE", "EIO"])
def test_a_console_that_vanishes_ends_nothing(rig: Rig, *, tty: bool) -> None:
    rig.console_reader, rig.console_fd = os.openpty() if tty else os.pipe()
    writer = rig.add()
    pump = rig.start()
    write_all(writer, b"seen\n")
    assert os.read(rig.console_reader, 100).startswith(b"seen")
    rig.drop_console_reader()
    write_all(writer, BIG)
    finish(rig, pump)
    assert rig.log() == b"seen\n" + BIG
    assert rig.notes == []


def test_a_full_console_disk_ends_nothing(rig: Rig) -> None:
    rig.console_fd = os.open("/dev/full", os.O_WRONLY)
    writer = rig.add()
    pump = rig.start()
    write_all(writer, BIG[:300_000])
    finish(rig, pump)
    assert rig.log() == BIG[:300_000]


def test_a_full_log_disk_is_said_once_and_the_console_goes_on(rig: Rig) -> None:
    path = rig.open_file_console()
    full = rig.directory / "full.log"
    full.symlink_to("/dev/full")
    writer = rig.add(log_path=full)
    pump = rig.start()
    write_all(writer, b"one\n")
    pump.sync()
    write_all(writer, b"two\n")
    finish(rig, pump)
    assert path.read_bytes() == b"one\ntwo\n"
    assert len(rig.notes) == 1
    assert "No space left" in rig.notes[0]
    assert str(full) in rig.notes[0]


def test_a_log_that_is_cut_short_is_said(rig: Rig) -> None:
    """The write that fills the disk succeeds in part; the rest must not vanish in silence."""
    writer = rig.add()
    pump = rig.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        write_all(writer, b"x" * 2000)
        finish(rig, pump)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert rig.log() == b"x" * 1000
    assert len(rig.notes) == 1


def test_a_closed_console_shows_nothing_and_logs_all(rig: Rig) -> None:
    writer = rig.add()
    pump = rig.start()
    write_all(writer, BIG)
    finish(rig, pump)
    assert rig.log() == BIG
    assert rig.outputs == []


def test_a_pseudo_terminal_is_copied_to_its_last_byte(rig: Rig) -> None:
    """The end of a terminal is EIO, and may come together with the last words."""
    import termios

    path = rig.open_file_console()
    writer = rig.add(tty=True)
    attributes = termios.tcgetattr(writer)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(writer, termios.TCSANOW, attributes)
    pump = rig.start()
    data = b"\x1b[2Jredrawn\r\n\xff\x00" * 20_000 + b"last words"
    write_and_close(rig, writer, data).join(60)
    finish(rig, pump)
    assert rig.log() == data
    assert path.read_bytes() == data


def test_lines_of_several_ranks_are_never_split(rig: Rig) -> None:
    path = rig.open_file_console()
    writers = [rig.add(rank, f"rank {rank} | ".encode()) for rank in range(3)]
    pump = rig.start()
    line = "{} " + "x" * 700
    threads = [
        write_and_close(
            rig, fd, "".join(line.format(f"r{rank} n{n}") + "\n" for n in range(500)).encode()
        )
        for rank, fd in enumerate(writers)
    ]
    for thread in threads:
        thread.join(60)
    finish(rig, pump)
    shown = path.read_text().splitlines()
    for rank in range(3):
        mine = [text for text in shown if text.startswith(f"rank {rank} | ")]
        assert mine == [f"rank {rank} | " + line.format(f"r{rank} n{n}") for n in range(500)]
    assert len(shown) == 1500


def test_stdout_and_stderr_of_a_rank_share_one_log(rig: Rig) -> None:
    rig.open_file_console()
    out, err = rig.add(0), rig.add(0)
    pump = rig.start()
    for _ in range(100):
        write_all(out, b"out\n")
        write_all(err, b"err\n")
    finish(rig, pump)
    assert sorted(rig.log().split()) == [b"err"] * 100 + [b"out"] * 100


def test_sync_means_that_all_written_so_far_is_in_the_log(rig: Rig) -> None:
    path = rig.open_file_console()
    writer = rig.add(0, b"rank 0 | ")
    pump = rig.start()
    for number in range(200):
        write_all(writer, b"%d " % number)
        pump.sync()
        assert rig.log().endswith(b"%d " % number)
    finish(rig, pump)
    assert path.read_bytes() == b"rank 0 | " + rig.log() + b"\n"


def test_sync_ends_though_a_rank_never_stops_writing(rig: Rig) -> None:
    """Rank 1 has failed while rank 0 floods its output: the kill must not wait, nor memory grow."""
    path = rig.open_file_console()
    writer = rig.add()
    pump = rig.start()
    enough = threading.Event()

    def flood() -> None:
        while not enough.is_set():
            write_all(writer, b"y\n" * 1000)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        wait_for(lambda: rig.outputs, "the flood")
        started = time.monotonic()
        for _ in range(5):
            pump.sync()
        took_s = time.monotonic() - started
        size = path.stat().st_size
        assert wait_for(lambda: path.stat().st_size > size, "the console to go on")
    finally:
        enough.set()
        flooding.join(60)
        finish(rig, pump)
    assert took_s < HANG_LIMIT_S
    assert path.read_bytes() == rig.log()


def test_a_pipe_that_somebody_else_holds_open_does_not_keep_us(rig: Rig) -> None:
    """A process that even SIGKILL cannot end still has the writing end."""
    path = rig.open_file_console()
    writer = rig.add(0, b"rank 0 | ")
    pump = rig.start()
    write_all(writer, b"last words")
    started = time.monotonic()
    pump.finish()
    assert time.monotonic() - started < HANG_LIMIT_S
    assert path.read_bytes() == b"rank 0 | last words\n"


def test_nothing_stays_open_behind_it(rig: Rig) -> None:
    """Each restart has a pump of its own; a long series of them must not run out of files."""
    rig.open_console()
    rig.add()
    rig.add()
    before = count_fds()
    pump = rig.start()
    for fd in list(rig.writers):
        write_all(fd, b"x")
    finish(rig, pump)
    assert count_fds() == before - 4, "the sources and the ranks' ends"
    pump.sync()  # late, and harmless
