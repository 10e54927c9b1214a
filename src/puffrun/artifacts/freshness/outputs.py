"""What a build must leave behind: checked, sealed, verified later, and installed into the tree."""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from puffrun.artifacts.freshness.hashing import HashCache, hash_file
from puffrun.artifacts.freshness.reasons import StaleReason
from puffrun.artifacts.store.artifact_store import Store, fsync_dir
from puffrun.artifacts.store.manifest import Manifest, Output
from puffrun.config import ArtifactSpec

WRITE_BITS = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
KINDS = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe"}


def list_installs(spec: ArtifactSpec) -> tuple[tuple[str, str], ...]:
    """List (output, path in the tree); an in-place output is a copy of the stored one too."""
    inplace = tuple((path, path) for path in spec.outputs) if spec.mode == "inplace" else ()
    return (*inplace, *spec.install)


def find_output_problem(out_dir: Path, outputs: Iterable[str]) -> str | None:
    """Say what is wrong with the outputs of a build that claims to have succeeded, or None."""
    for output in outputs:
        path = out_dir / output
        try:
            status = path.lstat()
        except OSError:
            return f"did not write output `{output}`"
        if not stat.S_ISREG(status.st_mode):
            kind = KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
            return f"wrote output `{output}` as {kind}, not as a regular file"
        if status.st_size == 0:
            return f"wrote an empty output `{output}`"
        if not path.resolve().is_relative_to(out_dir.resolve()):
            return f"wrote output `{output}` outside its directory"
    return None


def seal_outputs(out_dir: Path, outputs: Sequence[str]) -> tuple[Output, ...]:
    """Take the write permission from all files of a build, sync and hash the declared ones.

    Directories stay writable, so that `rm -rf` of the state directory needs no chmod first.

    Raises:
        OSError: a file could not be read or synced.
    """
    sealed = tuple(_seal_output(out_dir, output) for output in outputs)
    for directory, _, names in os.walk(out_dir):
        for name in names:
            path = Path(directory, name)
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                path.chmod(stat.S_IMODE(status.st_mode) & ~WRITE_BITS)
        fsync_dir(Path(directory))
    return sealed


def _seal_output(out_dir: Path, output: str) -> Output:
    path = out_dir / output
    if path.stat().st_nlink > 1:  # a hard link, maybe to a source: the store needs its own copy
        copy_file(path, path, stat.S_IMODE(path.stat().st_mode))
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        status = os.fstat(fd)
    finally:
        os.close(fd)
    return Output(output, status.st_size, stat.S_IMODE(status.st_mode), hash_file(path))


def find_damage(store: Store, manifest: Manifest, cache: HashCache) -> tuple[StaleReason, ...]:
    """Say which outputs of a manifest are not what was built."""
    reasons = []
    for output in manifest.outputs:
        key = f"object {manifest.attempt}/{output.path}"
        found = _compare(store.object_dir(manifest.attempt) / output.path, output, key, cache)
        if found is not None:
            reasons.append(StaleReason("output", output.path, None, found))
    return tuple(reasons)


def find_missing_installs(
    spec: ArtifactSpec, root_dir: Path, manifest: Manifest, cache: HashCache
) -> tuple[StaleReason, ...]:
    """Say which installed copies are missing or differ from what was built."""
    built = {output.path: output for output in manifest.outputs}
    reasons = []
    for output, target in list_installs(spec):
        found = _compare(root_dir / target, built[output], f"install {target}", cache)
        if found is not None:
            reasons.append(StaleReason("install", target, None, found))
    return tuple(reasons)


def _compare(path: Path, output: Output, key: str, cache: HashCache) -> str | None:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return "is not a regular file"
        same = status.st_size == output.size and (
            cache.file_hash(key, str(path), status) == output.sha256
        )
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    if not same:
        return "is not what was built"
    executable = bool(status.st_mode & stat.S_IXUSR) == bool(output.mode & stat.S_IXUSR)
    return None if executable else "has other permissions"


def install_outputs(
    spec: ArtifactSpec, root_dir: Path, object_dir: Path, manifest: Manifest
) -> None:
    """Copy outputs into the tree, each by rename: who uses the old one keeps it.

    Copies, not hard links: a later `cp` over the installed file must not reach the store.

    Raises:
        OSError: a copy could not be written.
    """
    modes = {output.path: output.mode for output in manifest.outputs}
    for output, target in list_installs(spec):
        target_path = root_dir / target
        target_path.parent.mkdir(parents=True, exist_ok=True)
        copy_file(object_dir / output, target_path, modes[output])


def copy_file(source: Path, target: Path, mode: int) -> None:
    """Copy a file so that at every moment the old or the new one is there, whole.

    Raises:
        OSError: it could not be written.
    """
    temporary_path = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with source.open("rb") as reader, temporary_path.open("wb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
            writer.flush()
            os.fchmod(writer.fileno(), mode)
            os.fsync(writer.fileno())
        temporary_path.replace(target)
    finally:
        temporary_path.unlink(missing_ok=True)
    fsync_dir(target.parent)


class Displaced:
    """In-place outputs moved aside while a build runs, so that only what it writes counts.

    Moving keeps the old file whole for those who run it, and makes tools that look at time
    stamps (make, setuptools) write it again.
    """

    def __init__(self, root_dir: Path, outputs: Iterable[str]) -> None:
        self._pairs = tuple(_make_aside_pair(root_dir / output) for output in outputs)
        self._is_moved = False

    def move_aside(self) -> None:
        """Move the old outputs away; one that a killed build left aside comes back first."""
        for path, aside in self._pairs:
            with contextlib.suppress(FileNotFoundError):
                aside.replace(path)
        self._is_moved = True
        for path, aside in self._pairs:
            with contextlib.suppress(FileNotFoundError):
                path.replace(aside)

    def restore(self) -> None:
        """Leave the tree as it was before a build that failed; after `discard` nothing."""
        for path, aside in self._pairs if self._is_moved else ():
            try:
                aside.replace(path)
            except FileNotFoundError:
                path.unlink(missing_ok=True)
        self._is_moved = False

    def discard(self) -> None:
        """Forget the old outputs: new ones are in their place."""
        self._is_moved = False
        for _, aside in self._pairs:
            aside.unlink(missing_ok=True)


def _make_aside_pair(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(f".{path.name}.before-build")
