"""Content hashes of files and versions of tools, remembered by what `stat` says about them.

The memory is `cache.json` of an artifact: losing it costs time, never correctness.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20
RACY_NS = 2_000_000_000  # a file this young may change again within its time stamp (git's rule)
EXECUTABLE = "+x"


def hash_file(path: str | Path) -> str:
    """Hash a file's content with SHA-256.

    Raises:
        OSError: it could not be read.
    """
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123  # Path costs time 10,000 times
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def make_signature(stat: os.stat_result) -> str:
    """Say what changes whenever a file's content does. `ctime` cannot be set back by anybody."""
    return f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} "


class HashCache:
    """Remembers hashes by signature. Entries not asked for in a pass are forgotten on `save`."""

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._now_ns = now_ns
        self._old: dict[str, str] = _load(path)
        self._new: dict[str, str] = {}
        self._missed = False

    def file_hash(self, key: str, path: str, stat: os.stat_result) -> str:
        """Hash a file, or remember its hash. `stat` must be taken before the call.

        Raises:
            OSError: the file could not be read.
        """
        signature = make_signature(stat)
        known = self._old.get(key)
        if known is not None and known.startswith(signature):
            self._new[key] = known
            return known[len(signature) :]
        now = self._now_ns()
        digest = hash_file(path)
        if now - stat.st_ctime_ns >= RACY_NS:
            self._remember(key, signature + digest)
        return digest

    def text(self, key: str, signature: str, compute: Callable[[], str]) -> str:
        """Return a remembered text, or compute it; `signature` says what it depends on.

        An empty text is not remembered.
        """
        known = self._old.get(key) or self._new.get(key)
        if known is not None and known.startswith(signature):
            self._new[key] = known
            return known[len(signature) :]
        text = compute()
        if text:
            self._remember(key, signature + text)
        return text

    def save(self) -> None:
        """Write the memory if it learned something; a store that cannot be written is no error."""
        if not self._missed:
            return
        temporary_path = self._path.with_name(f".cache.{os.getpid()}.tmp")
        with contextlib.suppress(OSError):
            try:
                temporary_path.write_text(json.dumps(self._new), encoding="utf-8")
                temporary_path.replace(self._path)
            finally:
                temporary_path.unlink(missing_ok=True)
        self._old = {**self._old, **self._new}
        self._missed = False

    def _remember(self, key: str, entry: str) -> None:
        self._old[key] = self._new[key] = entry
        self._missed = True


def _load(path: Path) -> dict[str, str]:
    try:
        data: Any = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    if isinstance(data, dict) and all(isinstance(value, str) for value in data.values()):
        return data
    return {}
