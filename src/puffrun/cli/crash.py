"""The crash log: what a report of a bug in puffrun needs."""

import platform
import shlex
import tempfile
import traceback
from pathlib import Path

from puffrun.cli.caller import Caller
from puffrun.package import __version__

_NAME = "crash.log"


def write_crash_log(error: BaseException, caller: Caller) -> Path | None:
    """Write the traceback into the state directory, or else a new temporary one.

    Returns where it is, None when nothing could be written.
    """
    text = (
        f"puffrun {__version__}  python {platform.python_version()}  {platform.platform()}\n"
        f"command: {shlex.join(['puffrun', *caller.argv])}\n"
        f"directory: {caller.cwd}\n\n"
        f"{''.join(traceback.format_exception(error))}"
    )
    if caller.state_dir is not None:
        path = _write(caller.state_dir / _NAME, text)
        if path is not None:
            return path
    try:
        return _write(Path(tempfile.mkdtemp(prefix="puffrun-")) / _NAME, text)
    except OSError:
        return None


def _write(path: Path, text: str) -> Path | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        return None
    return path
