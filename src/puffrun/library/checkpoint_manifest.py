"""A checkpoint's manifest: the sizes and hashes of its files. Nothing in it is taken on trust."""

import hashlib
import json
from pathlib import Path

MANIFEST = "manifest.json"
SCHEMA = 1
DAMAGE = (OSError, ValueError, RecursionError)  # a file that is not there, or is no manifest
Entry = tuple[int, str]  # size in bytes, hash


def make_entry(path: Path) -> Entry:
    """Measure and hash a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        return file.tell(), digest.hexdigest()


def find_damage(path: Path, *, verify: bool) -> str | None:
    """Say what is wrong with a checkpoint, or None."""
    try:
        files = read_manifest(path)
    except DAMAGE as error:
        return f"its manifest cannot be read: {error}"
    try:
        damages = (_compare_file(path, name, entry, verify=verify) for name, entry in files.items())
        return next((damage for damage in damages if damage is not None), None)
    except DAMAGE as error:
        return f"its files cannot be read: {error}"


def read_manifest(path: Path) -> dict[str, Entry]:
    """Read a manifest of which nothing is taken on trust.

    Raises:
        OSError, ValueError, RecursionError: `DAMAGE`: there is none, or another program's.
    """
    document = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    schema = document.get("schema") if isinstance(document, dict) else None
    files = document.get("files") if isinstance(document, dict) else None
    if schema != SCHEMA or not isinstance(files, dict):
        raise ValueError(f"it has schema {schema!r:.40}, or no list of files")
    return {name: _read_entry(name, entry) for name, entry in files.items()}


def _read_entry(name: str, entry: object) -> Entry:
    size = entry.get("size") if isinstance(entry, dict) else None
    digest = entry.get("blake2b") if isinstance(entry, dict) else None
    if not isinstance(size, int) or not isinstance(digest, str):
        raise ValueError(f"it has no size or hash of {name!r:.80}")  # noqa: TRY004  # a file's contents, no argument
    return size, digest


def _compare_file(path: Path, name: str, entry: Entry, *, verify: bool) -> str | None:
    file_path = path / name
    if not file_path.is_file():
        return f"{name} is not there"
    size = file_path.stat().st_size
    if size != entry[0]:
        return f"{name} has {size} bytes instead of {entry[0]}"
    if verify and make_entry(file_path)[1] != entry[1]:
        return f"{name} has other contents than when it was written"
    return None
