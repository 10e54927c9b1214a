"""The lock of an artifact: for efficiency only. Correctness comes from how manifests are published.

flock is silently local to a node on some cluster file systems, so nothing here may rely on it.
"""

import contextlib
import errno
import json
import os
import pwd
import socket
import stat
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from puffrun.artifacts.store.artifact_store import Store
from puffrun.process import find_stat

# errors of flock(2) that say that this file system has no locks to give
NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO, errno.EBADF})
OWN_MODE, GROUP_MODE = 0o644, 0o664


class NoLocksError(Exception):
    """The file system of the store has no locks."""


@dataclass(frozen=True)
class Owner:
    """Who builds: advice for those who wait, never a proof. `since` is `time.time_ns()`."""

    user: str
    pid: int
    host: str
    since: int
    log_path: str


class BuildLock:
    """One flock on one file that is never unlinked.

    The descriptor may be passed to a guardian: the kernel frees the lock only when the last copy
    of it is closed.
    """

    def __init__(self, path: Path) -> None:
        from filelock import UnixFileLock  # 45 ms, for stale artifacts only

        self._path = path
        self._fds: list[int] = []
        self._lock = UnixFileLock(
            path,
            mode=_choose_mode(path.parent),
            fallback_to_soft=False,
            preserve_lock_file=True,
            on_acquired=self._fds.append,
        )

    def try_acquire(self) -> bool:
        """Take the lock if it is free.

        Raises:
            NoLocksError: there are no locks here.
            OSError: the lock file could not be opened.
        """
        from filelock import Timeout  # imported by the constructor already

        self._fds.clear()
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            return False
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise NoLocksError(error.strerror) from None
            raise
        if self._is_same_file():
            return True
        self._lock.release()  # somebody removed the file: those who come now lock another one
        return False

    @property
    def fd(self) -> int:
        """The locked descriptor."""
        return self._fds[-1]

    def release(self) -> None:
        """Free the lock."""
        self._lock.release()

    def _is_same_file(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self.fd))
        except FileNotFoundError:
            return False


def _choose_mode(directory: Path) -> int:
    return GROUP_MODE if directory.stat().st_mode & stat.S_IWGRP else OWN_MODE


@contextlib.contextmanager
def owned(store: Store, attempt: str) -> Iterator[None]:
    """Say who holds the lock while it is held."""
    owner = Owner(
        _find_user(),
        os.getpid(),
        socket.gethostname(),
        time.time_ns(),
        str(store.log_path(attempt)),
    )
    temporary_path = store.path / f".{attempt}.owner"
    temporary_path.write_text(json.dumps(asdict(owner)), encoding="utf-8")
    temporary_path.replace(store.owner_path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            store.owner_path.unlink()


def find_owner(store: Store) -> Owner | None:
    """Read who builds; None when nobody says so, or a process of this host that is dead does."""
    try:
        owner = Owner(**json.loads(store.owner_path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    if owner.host == socket.gethostname() and find_stat(owner.pid) is None:
        return None
    return owner


def describe_owner(owner: Owner) -> str:
    """Say who builds: `alice, pid 4123 on node7 since 10:41:30`."""
    since = time.strftime("%H:%M:%S", time.localtime(owner.since / 1e9))
    return f"{owner.user}, pid {owner.pid} on {owner.host} since {since}"


def _find_user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
