"""What puffrun raises when it cannot do its job, and the exit code that each error ends with.

A failed rank is not an error: it is a result (see `puffrun.outcome`).
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """puffrun's own exit codes; any other code is the first failing rank's (design: exit codes)."""

    OK = 0
    USAGE = 2
    BUG = 70
    ARTIFACT_FAILED = 71
    LOCK_TIMEOUT = 72
    LAUNCH_FAILED = 73
    DISAGREED = 74
    HUNG = 75
    TIMEOUT = 124


class PuffrunError(Exception):
    """puffrun could not do its job; `message` says what was attempted, on what, what was found.

    `hint` is something that the user can type, or None.
    """

    exit_code = ExitCode.BUG

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PuffrunError):
    """The command line, the config or the plan cannot be carried out; nothing was started."""

    exit_code = ExitCode.USAGE


class ArtifactError(PuffrunError):
    """An artifact could not be built; no rank was started."""

    exit_code = ExitCode.ARTIFACT_FAILED


class LockTimeoutError(PuffrunError):
    """An artifact's lock could not be had in time."""

    exit_code = ExitCode.LOCK_TIMEOUT


class LaunchError(PuffrunError):
    """torchrun could not be started, or a process survived SIGKILL."""

    exit_code = ExitCode.LAUNCH_FAILED


class StoppedError(PuffrunError):
    """puffrun was told to stop by a signal before any rank was started; ends with 128 + N."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by signal {signum}")
        self.signum = signum


class DisagreementError(PuffrunError):
    """The ranks must not go on together; raised by every rank with the same text.

    `errors` are the exceptions that ranks contributed: `RankError` of
    `puffrun.library.agreement.meeting_verdict`.
    """

    exit_code = ExitCode.DISAGREED

    def __init__(self, message: str, errors: tuple[object, ...] = ()) -> None:
        super().__init__(message)
        self.errors = errors
