"""Finding an artifact's inputs: globs, relative to a root, expanded in one walk with `stat`."""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from puffrun.artifacts.freshness.hashing import EXECUTABLE, HashCache

MAGIC = re.compile(r"[*?\[]")
Match = tuple[str, os.stat_result]


@dataclass(frozen=True)
class Inputs:
    """What the patterns matched: path → content hash (`+x` when executable), sorted by path.

    `unmatched` are patterns without `*`, `?` or `[` that name nothing; `is_empty`: no pattern
    matched anything, not even an excluded path.
    """

    hashes: dict[str, str]
    unmatched: tuple[str, ...] = ()
    is_empty: bool = False


def find_inputs(
    root_dir: Path, patterns: Iterable[str], excluded: frozenset[str], cache: HashCache
) -> Inputs:
    """Expand patterns and hash what they match; paths in `excluded` are left out.

    A file that vanishes meanwhile counts as not there.

    Raises:
        OSError: a file could not be read.
    """
    tree = SourceTree(str(root_dir))
    found: dict[str, os.stat_result] = {}
    unmatched = []
    for pattern in patterns:
        matches = dict(tree.expand(pattern))
        if not matches and not MAGIC.search(pattern) and pattern not in excluded:
            unmatched.append(pattern)
        found.update(matches)
    hashes = {}
    for path in sorted(found.keys() - excluded):
        try:
            digest = cache.file_hash(path, tree.join(path), found[path])
        except FileNotFoundError:
            continue
        hashes[path] = digest + EXECUTABLE if found[path].st_mode & stat.S_IXUSR else digest
    return Inputs(hashes, tuple(unmatched), is_empty=not found)


class SourceTree:
    """A directory tree as it was when first looked at: each directory is read once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._listed: dict[str, list[os.DirEntry[str]]] = {}

    def join(self, path: str) -> str:
        """Make a path below the root; an absolute one stays what it is."""
        return path if path.startswith("/") else f"{self._root}/{path}"

    def expand(self, pattern: str) -> Iterator[Match]:
        """Find the files that match a glob, as (relative path, stat); links are followed.

        `*`, `?` and `[…]` match within one name and never a leading dot; `**` matches any number
        of directories, hidden and linked ones excepted. A directory stands for all files below it.
        """
        segments = tuple(s for s in pattern.split("/") if s not in ("", "."))
        return self._expand("/" if pattern.startswith("/") else "", segments)

    def _expand(self, prefix: str, segments: tuple[str, ...]) -> Iterator[Match]:
        if not segments:
            return iter(())
        head, rest = segments[0], segments[1:]
        if head == "**":
            return self._descend(prefix, rest or ("*",))
        if MAGIC.search(head):
            return self._match(prefix, head, rest)
        return self._take(prefix, head, rest)

    def _descend(self, prefix: str, rest: tuple[str, ...]) -> Iterator[Match]:
        """Match the rest here and in every directory below."""
        yield from self._expand(prefix, rest)
        for entry in self._list(prefix):
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                yield from self._descend(f"{prefix}{entry.name}/", rest)

    def _match(self, prefix: str, head: str, rest: tuple[str, ...]) -> Iterator[Match]:
        """Match one name with a pattern: files at the end of it, directories before."""
        matches = _compile(head).match
        dots = head.startswith(".")
        for entry in self._list(prefix):
            name = entry.name
            if (name.startswith(".") and not dots) or not matches(name):
                continue
            if not rest:
                status = _find_file_stat(entry)
                if status is not None:
                    yield prefix + name, status
            elif entry.is_dir():
                yield from self._expand(f"{prefix}{name}/", rest)

    def _take(self, prefix: str, name: str, rest: tuple[str, ...]) -> Iterator[Match]:
        """Follow one literal name: a file, or a directory to go on in."""
        path = prefix + name
        try:
            status = os.stat(self.join(path))  # noqa: PTH116  # Path would drop `..` and `.`
        except OSError:
            return
        if stat.S_ISDIR(status.st_mode):
            yield from self._expand(f"{path}/", rest or ("**",))
        elif stat.S_ISREG(status.st_mode) and not rest:
            yield path, status

    def _list(self, prefix: str) -> list[os.DirEntry[str]]:
        if prefix not in self._listed:
            try:
                with os.scandir(self.join(prefix)) as entries:
                    self._listed[prefix] = list(entries)
            except OSError:
                self._listed[prefix] = []
        return self._listed[prefix]


def _find_file_stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        status = entry.stat()
    except OSError:
        return None  # a dangling link, or gone since the directory was read
    return status if stat.S_ISREG(status.st_mode) else None


@lru_cache(maxsize=256)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
