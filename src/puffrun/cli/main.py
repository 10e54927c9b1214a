"""The error boundary: whatever happens inside, the user gets one line and an exit code."""

import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

from puffrun.cli.app import COMMANDS, make_app
from puffrun.cli.caller import Caller
from puffrun.cli.crash import write_crash_log
from puffrun.cli.standard_streams import flush_stdout, open_missing_streams
from puffrun.errors import ExitCode, PuffrunError, StoppedError, UsageError

INTERRUPTED = 130
MAX_SHOWN = 60  # characters of a name
_VALUE_WORDS = {  # what Typer says of a value, and what we do
    r"^Invalid value for (`\S+`): Input should be a valid integer.*": r"\1 must be a whole number",
    r"^Invalid value for (`\S+`): Input should be greater than or equal to (\d+).*": (
        r"\1 must be a whole number, \2 or more"
    ),
}
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP)
_FULL = (errno.ENOSPC, errno.EDQUOT)


def run() -> NoReturn:
    """Run puffrun as a program: the console script and `python -m puffrun`."""
    open_missing_streams()
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Carry out a command line, without the program's name, and return the exit code."""
    caller = Caller(tuple(argv), dict(os.environ))
    try:
        return flush_stdout(_dispatch(caller))
    except StoppedError as error:
        _say_error(error.message, None)
        return 128 + error.signum
    except PuffrunError as error:
        _say_error(error.message, error.hint)
        return int(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as error:  # Typer's way out when standard output is a closed pipe
        return error.code if isinstance(error.code, int) else ExitCode.BUG
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes an exit code
        return _end_unexpected(error, caller)


def _end_unexpected(error: Exception, caller: Caller) -> int:
    """End on what nobody foresaw: a full disk is nobody's bug, all else is ours."""
    if isinstance(error, OSError) and error.errno in _FULL:
        where = f": {error.filename}" if error.filename else ""
        _say_error(f"{error.strerror}{where}", None)
        return int(ExitCode.LAUNCH_FAILED)
    if isinstance(error, OSError) and error.errno in _NO_PATH and error.filename:
        from puffrun.console.text import shorten  # only a failure pays for it

        name = shorten(str(error.filename), MAX_SHOWN)
        _say_error(f"`{name}` is no usable path: {error.strerror}", None)
        return int(ExitCode.USAGE)
    path = write_crash_log(error, caller)
    _say_error(f"a bug in puffrun: {type(error).__name__}: {error}", f"the traceback is in {path}")
    return int(ExitCode.BUG)


def _dispatch(caller: Caller) -> int:
    try:
        caller.cwd = Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current directory does not exist any more", hint="`cd .`") from None
    try:
        code = make_app(caller.argv)(
            list(caller.argv) or ["--help"], prog_name="puffrun", standalone_mode=False, obj=caller
        )
    except typer.TyperException as error:  # Typer's own usage errors
        raise _word_usage_error(error, caller.argv) from None
    if not caller.argv:  # the help was shown, but nothing was asked for
        return int(ExitCode.USAGE)
    return code if isinstance(code, int) else int(ExitCode.OK)


def _word_usage_error(error: typer.TyperException, argv: Sequence[str]) -> UsageError:
    """Say what Typer says as we do: one line, lower case, and a hint to type."""
    text = re.sub(r"'([^']*)'", r"`\1`", " ".join(error.format_message().split()))
    for theirs, ours in _VALUE_WORDS.items():
        text = re.sub(theirs, ours, text)
    found = re.fullmatch(r"(.*?)[.:]? \(?(?:Did you mean|Possible options:) (.*?)[?)]*", text)
    message, near = (found[1], found[2]) if found else (text, "")
    word = next((word for word in argv if not word.startswith("-")), "")
    command = f"{word} " if word in COMMANDS else ""
    hint = f"did you mean {near}?" if near else f"`puffrun {command}--help`"
    return UsageError(f"{message[:1].lower()}{message[1:]}".rstrip("."), hint=hint)


def _say_error(message: str, hint: str | None) -> None:
    from puffrun.console import make_screen  # only a failure pays for it

    make_screen(sys.stderr, os.environ).error(message, hint)
