"""The manifest: the one file that says an artifact is built, written last and never changed."""

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from puffrun.artifacts.store.artifact_store import Store, fsync_dir

SCHEMA = 1
NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


@dataclass(frozen=True)
class Output:
    """One output file: path below the object's directory, size in bytes, permissions, content."""

    path: str
    size: int
    mode: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What was built, from what (`parts` of the fingerprint), when (ns), in how many seconds."""

    name: str
    fingerprint: str
    parts: Mapping[str, Any]
    attempt: str
    outputs: tuple[Output, ...]
    started_at: int
    ended_at: int
    duration_s: float

    @property
    def outputs_hash(self) -> str:
        """One hash over all outputs: what those that need this artifact depend on."""
        return hash_json([[out.path, out.mode & 0o111 != 0, out.sha256] for out in self.outputs])


def hash_json(value: Any) -> str:
    """Hash a JSON value in its canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def find_manifest(store: Store, fingerprint: str) -> Manifest | None:
    """Load the manifest of a fingerprint; None when there is none that can be trusted."""
    return load_manifest(store.manifest_path(fingerprint))


def find_newest_manifest(store: Store) -> Manifest | None:
    """Load the manifest that was written last, to compare with; None when there is none."""
    for path in list_manifest_paths(store):
        manifest = load_manifest(path)
        if manifest is not None:
            return manifest
    return None


def list_manifest_paths(store: Store) -> list[Path]:
    """List all manifests, the newest first."""
    stamped = []
    for path in store.manifests_dir.glob("[!.]*.json"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            stamped.append((path.stat().st_mtime_ns, path.name, path))
    return [path for _, _, path in sorted(stamped, reverse=True)]


def load_manifest(path: Path) -> Manifest | None:
    """Load a manifest; None when it is not there, or is not whole."""
    try:
        data = json.loads(path.read_bytes())
        outputs = tuple(Output(**output) for output in data["outputs"])
        manifest = Manifest(**{**data["manifest"], "outputs": outputs})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return manifest if data.get("schema") == SCHEMA and manifest.fingerprint == path.stem else None


def commit_manifest(store: Store, manifest: Manifest, *, replace: bool) -> Manifest:
    """Publish a manifest; the one that is valid from now on is returned.

    Without `replace` the first to publish wins, lock or no lock: a manifest that is there
    already stays, and is returned.

    Raises:
        OSError: it could not be written.
    """
    final_path = store.manifest_path(manifest.fingerprint)
    temporary_path = store.manifests_dir / f".{manifest.attempt}.tmp"
    try:
        _write_synced(temporary_path, _as_text(manifest))
        if replace:
            temporary_path.replace(final_path)
        else:
            winner = _link(temporary_path, final_path)
            if winner is not None:
                return winner
        fsync_dir(store.manifests_dir)
    finally:
        temporary_path.unlink(missing_ok=True)
    return manifest


def _link(temporary_path: Path, final_path: Path) -> Manifest | None:
    """Give the manifest its name unless a valid one has it: that one is returned."""
    try:
        os.link(temporary_path, final_path)
    except FileExistsError:
        winner = load_manifest(final_path)
        if winner is None:
            temporary_path.replace(final_path)
        return winner
    except OSError as error:
        if error.errno not in NO_HARD_LINKS:
            raise
        temporary_path.replace(final_path)  # both manifests would be valid: the last one wins
    return None


def _as_text(manifest: Manifest) -> str:
    outputs = [asdict(output) for output in manifest.outputs]
    fields = {k: v for k, v in vars(manifest).items() if k != "outputs"}
    written = time.strftime("%Y-%m-%d %H:%M:%S")
    return json.dumps(
        {"schema": SCHEMA, "written": written, "outputs": outputs, "manifest": fields}
    )


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
