"""The names of an artifact's files below `.puffrun/artifacts/`; nobody else joins them.

NAME/lock                  held while building, never removed
     owner.json            who holds it: advice for those who wait
     objects/ATTEMPT/      outputs, written once
     manifests/FP.json     the commit point: what makes a fingerprint fresh
     logs/ATTEMPT.log      what the command printed
     failure.json          the last failure, for those who waited for it
     uses/RUN.json         runs that use an object, which keeps it alive
     cache.json            hashes by `stat`; may be lost at any time
"""

import contextlib
import os
import re
import secrets
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

GROUP_RIGHTS = stat.S_IRWXG | stat.S_ISGID


def make_attempt_id() -> str:
    """Name a build attempt after its host, its process and a random part."""
    host = re.sub(r"[^A-Za-z0-9.]", "", socket.gethostname()) or "localhost"
    return f"{host}-{os.getpid()}-{secrets.token_hex(3)}"


def split_attempt_id(attempt: str) -> tuple[str, int] | None:
    """Take host and pid out of an attempt's name; None when it is not such a name."""
    host, _, rest = attempt.partition("-")
    pid = rest.partition("-")[0]
    return (host, int(pid)) if pid.isdecimal() else None


@dataclass(frozen=True)
class Store:
    """The directory of one artifact."""

    path: Path

    @property
    def lock_path(self) -> Path:
        """The file that is locked while building."""
        return self.path / "lock"

    @property
    def owner_path(self) -> Path:
        """Who holds the lock."""
        return self.path / "owner.json"

    @property
    def failure_path(self) -> Path:
        """The last failure."""
        return self.path / "failure.json"

    @property
    def cache_path(self) -> Path:
        """Hashes by `stat`."""
        return self.path / "cache.json"

    @property
    def objects_dir(self) -> Path:
        """Where the attempts' outputs are."""
        return self.path / "objects"

    @property
    def manifests_dir(self) -> Path:
        """Where the manifests are."""
        return self.path / "manifests"

    @property
    def logs_dir(self) -> Path:
        """Where the logs are."""
        return self.path / "logs"

    @property
    def uses_dir(self) -> Path:
        """Where runs say which object they use."""
        return self.path / "uses"

    def object_dir(self, attempt: str) -> Path:
        """The outputs of one attempt."""
        return self.objects_dir / attempt

    def manifest_path(self, fingerprint: str) -> Path:
        """The proof that this fingerprint is built."""
        return self.manifests_dir / f"{fingerprint}.json"

    def log_path(self, attempt: str) -> Path:
        """What the command of one attempt printed."""
        return self.logs_dir / f"{attempt}.log"

    def use_path(self, run_id: str) -> Path:
        """Which object a run uses."""
        return self.uses_dir / f"{run_id}.json"

    def create(self) -> None:
        """Make all directories; a group that may write the parent may write them too.

        Raises:
            OSError: a directory could not be made.
        """
        missing = [parent for parent in self.path.parents if not parent.exists()]
        for directory in (*reversed(missing), self.path):
            _create_dir(directory)
        for directory in (self.objects_dir, self.manifests_dir, self.logs_dir, self.uses_dir):
            _create_dir(directory)


def open_store(state_dir: Path, name: str) -> Store:
    """Say where an artifact is kept; touches nothing."""
    return Store(state_dir / "artifacts" / name)


def _create_dir(path: Path) -> None:
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    parent_mode = path.parent.stat().st_mode
    if parent_mode & stat.S_IWGRP:
        with contextlib.suppress(PermissionError):
            path.chmod(stat.S_IMODE(path.stat().st_mode) | (parent_mode & GROUP_RIGHTS))


def fsync_dir(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
