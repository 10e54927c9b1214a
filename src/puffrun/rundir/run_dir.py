"""Where a run's files are: every path of one run, and where the runs of a project lie."""

import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from puffrun.errors import UsageError

# environment variables that ranks get
ENV_RUN_DIR = "PUFFRUN_RUN_DIR"
ENV_RUN_ID = "PUFFRUN_RUN_ID"
ENV_ARTIFACT_PREFIX = "PUFFRUN_ARTIFACT_"


def make_run_id() -> str:
    """Make a run id such as `1130-1042-k7fq2`: month, day, time and five random letters."""
    alphabet = "abcdefghjkmnpqrstuvwxyz23456789"
    tail = "".join(secrets.choice(alphabet) for _ in range(5))
    return f"{time.strftime('%m%d-%H%M')}-{tail}"


def artifact_env_name(artifact: str) -> str:
    """Name the variable that carries an artifact's directory: `drive-env` → `…_DRIVE_ENV`."""
    return ENV_ARTIFACT_PREFIX + "".join(c if c.isalnum() else "_" for c in artifact).upper()


@dataclass(frozen=True)
class RunDir:
    """Computes every path of one run; nobody else joins file names."""

    path: Path

    @classmethod
    def create(cls, path: Path, state_dir: Path) -> "RunDir":
        """Create an empty run directory, mode 0700, and point `last` of `state_dir` to it.

        Raises:
            UsageError: it cannot be created, or there is something in it.
        """
        check_run_dir(path)
        run_dir = cls(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            path.chmod(0o700)
            for directory in (
                run_dir.logs_dir,
                run_dir.errors_dir,
                run_dir.stacks_dir,
                run_dir.ranks_dir,
            ):
                directory.mkdir(mode=0o700)
        except OSError as error:
            raise _unusable(path, error.strerror or str(error)) from None
        _link_last(path, state_dir)
        return run_dir

    @property
    def plan_path(self) -> Path:
        """The LaunchPlan, without secrets."""
        return self.path / "plan.json"

    @property
    def events_path(self) -> Path:
        """The append-only event log, one JSON object a line."""
        return self.path / "events.jsonl"

    @property
    def report_path(self) -> Path:
        """The report, schema 1."""
        return self.path / "report.json"

    @property
    def logs_dir(self) -> Path:
        """Where each rank's output goes."""
        return self.path / "logs"

    @property
    def agent_log_path(self) -> Path:
        """What the torchrun agent and the guardian print."""
        return self.logs_dir / "agent.log"

    @property
    def torchrun_dir(self) -> Path:
        """What torchrun itself insists on writing."""
        return self.path / "torchrun"

    @property
    def errors_dir(self) -> Path:
        """Where a rank records its uncaught exception."""
        return self.path / "errors"

    @property
    def stacks_dir(self) -> Path:
        """Stacks taken before the kill."""
        return self.path / "stacks"

    @property
    def ranks_dir(self) -> Path:
        """What each rank leaves for whoever asks what it does: socket, journal, crash stack."""
        return self.path / "ranks"

    @property
    def wake_path(self) -> Path:
        """A FIFO that ranks write a line to, to wake the launcher."""
        return self.path / "wake"

    @property
    def checkpoint_path(self) -> Path:
        """What the last whole checkpoint is, written by `puffrun.checkpoint`."""
        return self.path / "checkpoint.json"

    def heartbeat_path(self, rank: int) -> Path:
        """The heartbeat of a rank; its layout is in `puffrun.heartbeat`."""
        return self.ranks_dir / f"rank-{rank}.beat"

    def log_path(self, rank: int) -> Path:
        """The whole output of a rank, byte-exact."""
        return self.logs_dir / f"rank-{rank}.log"

    def error_path(self, rank: int) -> Path:
        """The uncaught exception of a rank."""
        return self.errors_dir / f"rank-{rank}.json"

    def stack_path(self, rank: int) -> Path:
        """The stacks of a rank."""
        return self.stacks_dir / f"rank-{rank}.txt"

    def records_path(self, rank: int, recorder: str) -> Path:
        """The raw collectives of a rank, as one of torch's flight recorders tells them."""
        return self.stacks_dir / f"rank-{rank}.{recorder.removesuffix('_json')}.json"

    def socket_path(self, rank: int) -> Path:
        """The unix socket on which a rank answers what it does (`rank/server.py`)."""
        return self.ranks_dir / f"rank-{rank}.sock"

    def journal_path(self, rank: int) -> Path:
        """A rank's journal, JSON lines: whether it answers, and the members of its groups."""
        return self.ranks_dir / f"rank-{rank}.jsonl"

    def crash_path(self, rank: int) -> Path:
        """The Python stack of a rank that died of a fault in native code; else empty."""
        return self.ranks_dir / f"rank-{rank}.crash"


def runs_dir(state_dir: Path) -> Path:
    """Where the runs of a project are kept."""
    return state_dir / "runs"


def last_path(state_dir: Path) -> Path:
    """The link to the newest run."""
    return state_dir / "last"


def check_run_dir(path: Path) -> None:
    """Refuse a run directory that has something in it or cannot be written, creating nothing.

    Raises:
        UsageError: names the directory, or the one above it that stands in the way.
    """
    try:
        if any(path.iterdir()):
            raise UsageError(
                f"run directory {path} is not empty", hint="another `--run-dir`, or none"
            )
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    above = next(p for p in (path, *path.parents) if os.path.lexists(p))
    if not above.is_dir():
        raise _unusable(path, f"{above} is no directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise _unusable(path, f"{above} is not writable")


def _unusable(path: Path, why: str) -> UsageError:
    return UsageError(
        f"run directory {path} cannot be used: {why}", hint="`--run-dir DIR` with one that can"
    )


def _link_last(path: Path, state_dir: Path) -> None:
    """Let `last` name this run. It is a convenience: a run does not fail for it."""
    target = os.path.relpath(path, state_dir) if path.is_relative_to(state_dir) else str(path)
    temporary_path = state_dir / f".last.{path.name}.{os.getpid()}"
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        temporary_path.symlink_to(target)
        temporary_path.replace(last_path(state_dir))
    except OSError:
        with suppress(OSError):
            temporary_path.unlink()
