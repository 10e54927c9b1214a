"""Removing what was built, which is refused while a run uses it."""

from collections.abc import Sequence

from puffrun.artifacts.graph import select_named
from puffrun.artifacts.store.artifact_store import Store, open_store
from puffrun.artifacts.store.garbage import clean_store, find_live_uses
from puffrun.artifacts.store.lock import BuildLock, NoLocksError, describe_owner, find_owner
from puffrun.config import RunConfig
from puffrun.errors import ArtifactError, LockTimeoutError, UsageError


def clean_artifacts(config: RunConfig, names: Sequence[str] | None) -> tuple[str, ...]:
    """Remove what was built of the named artifacts (None: all); their names are returned.

    Installed copies in the tree stay.

    Raises:
        UsageError: a name is not known, or a live run uses one; nothing was removed of it.
        LockTimeoutError: one is being built.
        ArtifactError: the store cannot be written.
    """
    cleaned = []
    for spec in select_named(config.artifacts, names):
        store = open_store(config.state_dir, spec.name)
        if store.path.is_dir():
            try:
                _clean(spec.name, store)
            except OSError as error:
                raise ArtifactError(
                    f"artifact `{spec.name}` could not be removed: "
                    f"`{error.filename}`: {error.strerror}"
                ) from error
            cleaned.append(spec.name)
    return tuple(cleaned)


def _clean(name: str, store: Store) -> None:
    lock = BuildLock(store.lock_path)
    try:
        if not lock.try_acquire():
            owner = find_owner(store)
            who = describe_owner(owner) if owner else "somebody"
            raise LockTimeoutError(f"artifact `{name}` is being built by {who}")
    except NoLocksError:
        _refuse_used(name, store)
        clean_store(store)
        return
    try:
        _refuse_used(name, store)
        clean_store(store)
    finally:
        lock.release()


def _refuse_used(name: str, store: Store) -> None:
    uses = find_live_uses(store)
    if uses:
        raise UsageError(
            f"artifact `{name}` is used by run {uses[0].run_id}, pid {uses[0].pid}",
            hint="wait for the run to end, or stop it",
        )
