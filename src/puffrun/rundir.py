"""The names and formats of a run's files: the only contract between the launcher and the ranks.

Imported by the ranks too, so it stays on the standard library and imports nothing heavy.
"""

import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

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
    def errors_dir(self) -> Path:
        """Where a rank records its uncaught exception."""
        return self.path / "errors"

    @property
    def stacks_dir(self) -> Path:
        """Stacks taken before the kill."""
        return self.path / "stacks"

    @property
    def wake_path(self) -> Path:
        """A FIFO that ranks write a line to, to wake the launcher."""
        return self.path / "wake"

    def log_path(self, rank: int) -> Path:
        """The whole output of a rank, byte-exact."""
        return self.logs_dir / f"rank-{rank}.log"

    def error_path(self, rank: int) -> Path:
        """The uncaught exception of a rank."""
        return self.errors_dir / f"rank-{rank}.json"

    def stack_path(self, rank: int) -> Path:
        """The stacks of a rank."""
        return self.stacks_dir / f"rank-{rank}.txt"


def runs_dir(state_dir: Path) -> Path:
    """Where the runs of a project are kept."""
    return state_dir / "runs"


def last_path(state_dir: Path) -> Path:
    """The link to the newest run."""
    return state_dir / "last"


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, never a part, even after power loss."""
    temporary_path = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary_path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary_path.replace(path)
