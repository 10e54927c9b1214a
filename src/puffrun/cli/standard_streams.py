"""Standard streams that are closed, full or a pipe that nobody reads."""

import contextlib
import io
import os
import signal
import sys
from typing import Any

from puffrun.errors import ExitCode, UsageError

PIPE_CLOSED = 128 + signal.SIGPIPE
_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_missing_streams() -> None:
    """Open closed standard descriptors on /dev/null, so that no other file becomes one of them."""
    for fd, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest free one: fd itself
            os.set_inheritable(opened, True)  # noqa: FBT003 - the signature of os
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may hold any byte


def write_stdout(text: str) -> int:
    """Write data to standard output and return the exit code: 141 when nobody reads it.

    Raises:
        UsageError: standard output takes no data, for example because the disk is full.
    """
    return _deliver(text, int(ExitCode.OK))


def flush_stdout(code: int) -> int:
    """Flush standard output and return `code`; at exit Python would complain about failures.

    The command has done its work by now, so output that finds no room is worth a line, but
    changes no code: a run's is its report's.
    """
    try:
        return _deliver("", code)
    except UsageError as error:
        with contextlib.suppress(OSError):  # full as well: there is nowhere left to say it
            sys.stderr.write(f"puffrun: {error.message}\n")
            sys.stderr.flush()
        return code


def _deliver(text: str, code: int) -> int:
    try:
        sys.stdout.write(text)  # writes through where Python was told not to buffer
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon(sys.stdout)
        return code or PIPE_CLOSED
    except OSError as error:
        _abandon(sys.stdout)
        raise UsageError(f"standard output cannot be written: {error.strerror}") from None
    return code


def _abandon(stream: Any) -> None:
    """Let what is left in the buffer go nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
