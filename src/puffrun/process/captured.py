"""Short commands whose output we want, such as `cc --version`; bounded in time, never hanging."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from puffrun.process.guarded import known_child


@dataclass(frozen=True)
class Captured:
    """What a command printed. `returncode` is None when it did not end in time (and was killed)."""

    returncode: int | None
    stdout: bytes
    stderr: bytes


def run_captured(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 10.0,
) -> Captured:
    """Run a command in its own session and return what it printed.

    Output goes through files: a daemon that keeps a pipe open cannot keep us waiting.

    Raises:
        OSError: the command could not be started.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with known_child(
            argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err
        ) as popen:
            try:
                returncode: int | None = popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                returncode = None
                os.killpg(popen.pid, signal.SIGKILL)  # its own session: started by us just now
                popen.wait()
        out.seek(0)
        err.seek(0)
        return Captured(returncode, out.read(), err.read())
