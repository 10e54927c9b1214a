"""Taking away what nobody needs: old objects, old logs, what killed builds left behind.

Always under the artifact's lock. An object is never taken from a run: a run first says that it
uses it, then looks whether its manifest is still there; here the manifest goes first, and who
uses it is read after that. Whatever the order, one of the two sees the other.
"""

import contextlib
import json
import os
import shutil
import socket
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from puffrun.artifacts.store.artifact_store import Store, split_attempt_id
from puffrun.artifacts.store.manifest import list_manifest_paths, load_manifest
from puffrun.process import find_stat

KEPT_MANIFESTS = 3
KEPT_LOGS = 10
FOREIGN_USE_S = 14 * 24 * 3600.0  # a run on another node, which cannot be asked, ends by then
FOREIGN_BUILD_S = 24 * 3600.0  # the same for a build
LITTER_S = 3600.0


@dataclass(frozen=True)
class Use:
    """A run that uses an object, known by the launcher's pid and start time (clock ticks)."""

    run_id: str
    attempt: str
    host: str
    pid: int
    started: int


def write_use(store: Store, run_id: str, attempt: str) -> None:
    """Say that a run uses an object, which keeps it alive; a read-only store needs no saying."""
    me = find_stat(os.getpid())
    use = Use(run_id, attempt, socket.gethostname(), os.getpid(), me.started if me else 0)
    temporary_path = store.uses_dir / f".{run_id}.{attempt}.tmp"
    with contextlib.suppress(OSError):
        try:
            temporary_path.write_text(json.dumps(asdict(use)), encoding="utf-8")
            temporary_path.replace(store.use_path(run_id))
        finally:
            temporary_path.unlink(missing_ok=True)


def release_artifacts(state_dir: Path, run_id: str) -> None:
    """Say that a run has ended; one that was killed is noticed by its pid."""
    for path in (state_dir / "artifacts").glob(f"*/uses/{run_id}.json"):
        with contextlib.suppress(OSError):
            path.unlink()


def find_live_uses(store: Store) -> tuple[Use, ...]:
    """Read which runs use an object of this artifact now."""
    uses = []
    for path in _list(store.uses_dir):
        if path.suffix != ".json":
            continue
        try:
            use = Use(**json.loads(path.read_bytes()))
            age_s = time.time() - path.stat().st_mtime
        except (OSError, ValueError, TypeError):
            continue
        if _is_live(use, age_s):
            uses.append(use)
    return tuple(uses)


def _is_live(use: Use, age_s: float) -> bool:
    if use.host != socket.gethostname():
        return age_s < FOREIGN_USE_S
    process = find_stat(use.pid)
    return process is not None and process.alive and process.started == use.started


def collect_garbage(store: Store, replaced: str | None = None) -> None:
    """Keep the newest manifests and whatever is used; for after a build that succeeded.

    `replaced` is the attempt whose manifest that build took the place of. What cannot be removed
    stays, without an error.
    """
    _unlink(store.failure_path)
    _drop_old_manifests(store)
    _drop_dead_objects(store, replaced)
    for path in _newest_first(store.logs_dir)[KEPT_LOGS:]:
        _unlink(path)
    live = {use.run_id for use in find_live_uses(store)}
    for path in _list(store.uses_dir):
        if path.stem not in live:
            _unlink(path)
    _drop_litter(store)


def _drop_old_manifests(store: Store) -> None:
    used = {use.attempt for use in find_live_uses(store)}
    for path in list_manifest_paths(store)[KEPT_MANIFESTS:]:
        manifest = load_manifest(path)
        if manifest is None or manifest.attempt not in used:
            _unlink(path)


def _drop_dead_objects(store: Store, replaced: str | None) -> None:
    manifests = [load_manifest(path) for path in list_manifest_paths(store)]
    needed = {manifest.attempt for manifest in manifests if manifest is not None}
    needed |= {use.attempt for use in find_live_uses(store)}
    for path in _list(store.objects_dir):
        if path.name not in needed and (path.name == replaced or not _is_being_built(path)):
            remove_tree(path)


def _is_being_built(path: Path) -> bool:
    """Whether a builder that our lock did not exclude may still write here."""
    builder = split_attempt_id(path.name)
    if builder is None:
        return False
    host, pid = builder
    if host == socket.gethostname():
        return find_stat(pid) is not None
    try:
        return time.time() - path.stat().st_mtime < FOREIGN_BUILD_S
    except OSError:
        return False


def _drop_litter(store: Store) -> None:
    """Remove temporary files that killed processes left."""
    for directory in (store.path, store.manifests_dir, store.uses_dir):
        for path in _list(directory):
            with contextlib.suppress(OSError):
                if path.name.startswith(".") and time.time() - path.stat().st_mtime > LITTER_S:
                    path.unlink()


def clean_store(store: Store) -> None:
    """Remove all that was built, but for the lock."""
    for directory in (store.manifests_dir, store.objects_dir, store.logs_dir):
        for path in _list(directory):
            remove_tree(path) if path.is_dir() else _unlink(path)
    for path in (store.failure_path, store.cache_path):
        _unlink(path)


def remove_tree(path: Path) -> None:
    """Remove a directory, read-only parts included; what cannot be removed stays."""
    for directory, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            Path(directory).chmod(stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


def _list(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _newest_first(directory: Path) -> list[Path]:
    stamped = []
    for path in _list(directory):
        with contextlib.suppress(OSError):
            stamped.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(stamped, reverse=True)]


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
