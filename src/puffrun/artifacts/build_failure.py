"""A failed build: what to show, and how those who waited for it share it."""

import contextlib
import json
import re
import shlex
import signal
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from puffrun.artifacts.store.artifact_store import Store

SHOWN_LINES = 40
ERROR_LINES = 25  # kept for the first error when it stands before the last SHOWN_LINES
MAX_LOG_BYTES = 4 << 20
ERROR = re.compile(
    r"\b(error|fatal|undefined reference|cannot find|no such file|traceback|killed)\b",
    re.IGNORECASE,
)
KILLED = re.compile(r"\bKilled\b")
PLAIN = re.compile(r"[\w@%+=:,./{}-]+")  # `{out}` needs no quotes in a message
COMMAND_CHARACTERS = 60
SIGKILL_CODES = (-signal.SIGKILL, 128 + signal.SIGKILL)


@dataclass(frozen=True)
class Failure:
    """Why an artifact could not be built, in the same words for everybody.

    `summary` is `cc exited 1`, `detail` the same with the command in full; `lines` are the
    telling ones of the log; instants are `time.time_ns()`.
    """

    name: str
    fingerprint: str
    run_id: str
    summary: str
    detail: str
    lines: tuple[str, ...]
    log_path: str
    hint: str
    started_at: int
    ended_at: int

    @property
    def duration_s(self) -> float:
        """How long the failed build took."""
        return (self.ended_at - self.started_at) / 1e9

    @property
    def message(self) -> str:
        """The error line."""
        return f"artifact `{self.name}` could not be built: {self.detail}"


class BuildFailedError(Exception):
    """A build failed; carries the `Failure`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def shares_failure(failure: Failure, fingerprint: str, run_id: str, asked_at: int) -> bool:
    """Decide whether this failure answers a request as well.

    It does for the same fingerprint when the request is older than the failure, or belongs to
    the same run. Never for later requests: what was missing may be there now.
    """
    return failure.fingerprint == fingerprint and (
        failure.run_id == run_id or asked_at <= failure.ended_at
    )


def write_failure(store: Store, failure: Failure) -> None:
    """Leave a failure for those who wait; if it cannot be written, they build themselves."""
    temporary_path = store.path / f".{Path(failure.log_path).stem}.failure"
    with contextlib.suppress(OSError):
        try:
            temporary_path.write_text(json.dumps(asdict(failure)), encoding="utf-8")
            temporary_path.replace(store.failure_path)
        finally:
            temporary_path.unlink(missing_ok=True)


def find_failure(store: Store) -> Failure | None:
    """Read the last failure; None when there is none."""
    try:
        data = json.loads(store.failure_path.read_bytes())
        return Failure(**{**data, "lines": tuple(data["lines"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def suggest_fix(again: str, returncode: int | None, lines: Sequence[str], jobs: str) -> str:
    """Suggest what to type after a failure.

    `again` is the command line that builds it again, `jobs` the MAX_JOBS that the build had.
    """
    if returncode in SIGKILL_CODES or any(KILLED.search(line) for line in lines):
        fewer = max(1, int(jobs) // 2) if jobs.isdecimal() else 1
        return f"it may have run out of memory; fewer jobs need less: `MAX_JOBS={fewer} {again}`"
    return f"fix the source, then `{again}`"


def render_command(cmd: Sequence[str]) -> str:
    """Write a command as one would type it, cut to about a line."""
    text = " ".join(part if PLAIN.fullmatch(part) else shlex.quote(part) for part in cmd)
    return shorten(text, COMMAND_CHARACTERS)


def shorten(text: str, length: int) -> str:
    """Cut a text; what was cut leaves an ellipsis."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def read_log_lines(path: Path) -> tuple[str, ...]:
    """Read what to show of a log; a log that cannot be read shows nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ()
    return pick_lines(text.splitlines())


def pick_lines(lines: Sequence[str]) -> tuple[str, ...]:
    """Pick the last lines, and the first error too when it stands further up."""
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    if len(lines) <= SHOWN_LINES:
        return tuple(lines)
    first = next((i for i, line in enumerate(lines) if ERROR.search(line)), None)
    if first is None or first >= len(lines) - SHOWN_LINES:
        return tuple(lines[-SHOWN_LINES:])
    start = max(0, first - 2)
    end = start + ERROR_LINES
    rest = SHOWN_LINES - ERROR_LINES - 1
    return (*lines[start:end], f"… {len(lines) - rest - end} more lines …", *lines[-rest:])
