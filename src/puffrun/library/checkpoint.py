"""`checkpoint`: all of it, from every rank, or nothing; `latest_checkpoint` never finds a torn one.

    DIR/step-00000100/            a whole checkpoint: published by one rename
        manifest.json             sizes and hashes of its files
        ...                       what the ranks wrote
    DIR/.step-00000100.RUN.tmp/   one that is being written, or that died

What is published is never written to again. The same step saved again is published as
`step-00000100.2`, and the older one removed after that. Nothing is removed but what a checkpoint or
a draft of ours is, by its name and by its manifest.
"""

import fcntl
import json
import operator
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from puffrun.library.agreement.agree import sharing_errors
from puffrun.library.agreement.meeting import DEFAULT_TIMEOUT_S, Meetings, find_meetings
from puffrun.library.agreement.run_once import meet_once
from puffrun.library.checkpoint_manifest import (
    DAMAGE,
    MANIFEST,
    SCHEMA,
    Entry,
    find_damage,
    make_entry,
    read_manifest,
)
from puffrun.library.world import SINGLE, World
from puffrun.rundir import ENV_RUN_DIR, RunDir, write_atomically

NAME = re.compile(r"step-(\d{8,})(?:\.(\d+))?", re.ASCII)
DRAFT = re.compile(r"\.step-\d{8,}(\.\d+)?\.[0-9a-f]{8}\.tmp", re.ASCII)
TRIES = 10


@contextmanager
def checkpoint(
    directory: str | os.PathLike[str], step: int, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Iterator[Path]:
    """Write a checkpoint: every rank writes its files into the directory that is yielded.

    `directory` has to be one that all ranks see. When the block has ended on all ranks, the files
    are synced to disk, hashed, and published together as `directory/step-N`. Ranks must not write
    to the same file; `torch.distributed.checkpoint.save(state, checkpoint_id=path)` does not. The
    name `manifest.json`, at the top, is puffrun's own.

    Raises:
        DisagreementError: a rank failed, is gone or did not come; nothing was published and older
            checkpoints are untouched.
    """
    meetings = find_meetings(timeout_s)
    world = SINGLE if meetings is None else meetings.world
    topic = f"checkpoint `{step}`"
    with _sharing(meetings, topic, timeout_s):
        step = check_step(step)
        base = Path(directory).absolute()
        topic = f"checkpoint `{step}`"
    with ExitStack() as stack:
        draft = meet_once(
            meetings, topic, lambda: stack.enter_context(_drafting(base, step)), timeout_s=timeout_s
        )
        with _sharing(meetings, f"{topic}, writing", timeout_s):
            _check_visible(draft)
            yield draft
        _meet(meetings, f"{topic}, writing", timeout_s)  # nobody writes from here on
        entries: dict[str, Entry] = {}
        with _sharing(meetings, f"{topic}, syncing", timeout_s):
            entries = _sync_share(draft, world)
        everything = _meet(meetings, f"{topic}, syncing", timeout_s, entries)
        meet_once(
            meetings, topic, lambda: _publish(draft, base, step, everything), timeout_s=timeout_s
        )


def check_step(step: int) -> int:
    """Take what counts as a whole number, as an index does.

    Raises:
        TypeError: it is none.
        ValueError: it is negative.
    """
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(f"step has to be a whole number, not {step!r}") from None
    if number < 0:
        raise ValueError(f"step has to be 0 or more, not {number}")
    return number


@contextmanager
def _sharing(meetings: Meetings | None, topic: str, timeout_s: float) -> Iterator[None]:
    if meetings is None:
        yield
        return
    with sharing_errors(meetings, topic, timeout_s):
        yield


def _meet(
    meetings: Meetings | None, topic: str, timeout_s: float, entries: dict[str, Entry] | None = None
) -> dict[str, Entry]:
    """Meet, and put together what each rank has hashed."""
    if meetings is None:
        return entries or {}
    decide = None if entries is None else merge_entries
    merged = meetings.meet(topic, value=entries, decide=decide, timeout_s=timeout_s)
    return {path: (size, digest) for path, (size, digest) in (merged or {}).items()}


def merge_entries(values: dict[int, dict[str, Entry]]) -> dict[str, Entry]:
    """Put together what each rank has hashed."""
    return {path: entry for entries in values.values() for path, entry in entries.items()}


@contextmanager
def _drafting(base: Path, step: int) -> Iterator[Path]:
    """Make a private directory, locked as long as its writer lives; it is gone afterwards."""
    try:
        base.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(_tell_no_directory(base)) from None
    _remove_dead_drafts(base)
    draft, lock = _make_draft(base, step)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # published: it has another name by now
        os.close(lock)


def _tell_no_directory(base: Path) -> str:
    return f"{base} is not a directory: checkpoints need one"


def _make_draft(base: Path, step: int) -> tuple[Path, int]:
    for _ in range(TRIES):
        draft = base / f".step-{step:08d}.{secrets.token_hex(4)}.tmp"
        draft.mkdir()
        lock = _lock(draft)
        if lock is not None:
            return draft, lock
    raise OSError(f"cannot keep a directory in {base}: another process removes it")


def _lock(draft: Path) -> int | None:
    """Lock a directory; None when somebody holds it, or has removed it meanwhile."""
    try:
        descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink > 0 and draft.exists():
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove_dead_drafts(base: Path) -> None:
    """Remove what killed writers left; a living one holds its lock. What is not ours stays."""
    drafts = [path for path in base.iterdir() if DRAFT.fullmatch(path.name)]
    for draft in drafts:
        try:
            lock = _lock(draft)
        except OSError:  # a file, a link, somebody else's: in nobody's way
            continue
        if lock is not None:
            shutil.rmtree(draft, ignore_errors=True)
            os.close(lock)


def _check_visible(draft: Path) -> None:
    if not draft.is_dir():
        raise FileNotFoundError(
            f"this rank does not see {draft}: a checkpoint needs a directory that all ranks share"
        )


def _sync_share(draft: Path, world: World) -> dict[str, Entry]:
    """Sync the files (one rank of each node, for that node's cache), hash this rank's share.

    Raises:
        FileExistsError: the program has written a file of the manifest's name.
    """
    if os.path.lexists(draft / MANIFEST):
        raise FileExistsError(f"{MANIFEST} is puffrun's own file: give yours another name")
    paths = _list_files(draft)
    if world.local_rank == 0:
        for path in paths:
            _sync(draft / path)
        for directory in (draft, *(path for path in draft.rglob("*") if path.is_dir())):
            _sync(directory)
    return {path: make_entry(draft / path) for path in paths[world.rank :: world.size]}


def _list_files(directory: Path) -> list[str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return sorted({str(path.relative_to(directory)) for path in files} - {MANIFEST})


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(draft: Path, base: Path, step: int, entries: dict[str, Entry]) -> None:
    """Write the manifest and give the directory its name: from then on it is a checkpoint."""
    files = {path: entries.get(path) or make_entry(draft / path) for path in _list_files(draft)}
    document = {
        "schema": SCHEMA,
        "step": step,
        "at": time.time_ns(),
        "files": {
            path: {"size": size, "blake2b": digest} for path, (size, digest) in files.items()
        },
    }
    write_atomically(draft / MANIFEST, json.dumps(document, indent=1))
    _sync(draft)
    taken = [path for number, _, path in _list_checkpoints(base) if number == step]
    older = [path for path in taken if _is_ours(path)]
    final = base / _name_next(taken, step)
    draft.rename(final)
    _sync(base)
    _note(final, step)
    for path in older:
        _remove(path)


def _name_next(taken: list[Path], step: int) -> str:
    """Name a checkpoint; the same step again gets a number, so that nothing is overwritten."""
    numbers = [_parse(path.name) for path in taken]
    highest = max((number[1] for number in numbers if number), default=0)
    return f"step-{step:08d}" + (f".{highest + 1}" if taken else "")


def _is_ours(path: Path) -> bool:
    """Whether a checkpoint of ours is there, whole or not; what is anything else is kept."""
    try:
        read_manifest(path)
    except DAMAGE:
        return False
    return not path.is_symlink()


def _remove(path: Path) -> None:
    """Remove a superseded checkpoint: first its name, so that nobody finds half of it."""
    hidden = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with suppress(OSError):
        path.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def _note(path: Path, step: int) -> None:
    """Tell the launcher, whose card names the last checkpoint; never worth a failure."""
    run_dir = os.environ.get(ENV_RUN_DIR)
    if run_dir is not None:
        with suppress(OSError):
            document = {"path": str(path), "step": step, "at": time.time_ns()}
            write_atomically(RunDir(Path(run_dir)).checkpoint_path, json.dumps(document))


def _parse(name: str) -> tuple[int, int] | None:
    match = NAME.fullmatch(name)
    if match is None or match[1] != f"{int(match[1]):08d}":  # nine digits, the first of them 0
        return None
    return int(match[1]), int(match[2] or 1)


def _list_checkpoints(base: Path) -> list[tuple[int, int, Path]]:
    """List (step, number, path) of everything that has a checkpoint's name."""
    try:
        entries = [(_parse(path.name), path) for path in base.iterdir()]
    except FileNotFoundError:
        return []
    except NotADirectoryError:
        raise NotADirectoryError(_tell_no_directory(base)) from None
    return sorted((*key, path) for key, path in entries if key is not None)


def latest_checkpoint(directory: str | os.PathLike[str], *, verify: bool = False) -> Path | None:
    """Find the whole checkpoint with the highest step; None when there is none.

    Files are compared with the manifest by size, with `verify=True` by hash too (reads it all).
    It looks by itself; `run_once(latest_checkpoint, directory)` gives all ranks the same answer.
    """
    for _, _, path in reversed(_list_checkpoints(Path(directory))):
        if find_damage(path, verify=verify) is None:
            return path
    return None
