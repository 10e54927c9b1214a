"""One artifact of a request: fresh, shared with somebody who builds it now, or built here."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Literal

from puffrun.artifacts.artifact_events import (
    ArtifactEvent,
    Built,
    Failed,
    Fresh,
    Installed,
    Noted,
    Shared,
    Stale,
    Waiting,
)
from puffrun.artifacts.build import Needs, build_locked, install_locked
from puffrun.artifacts.build_failure import BuildFailedError, find_failure, shares_failure
from puffrun.artifacts.freshness.freshness import Observed, observe, open_cache
from puffrun.artifacts.freshness.hashing import HashCache
from puffrun.artifacts.freshness.outputs import find_damage, find_missing_installs
from puffrun.artifacts.freshness.reasons import StaleReason, render_reasons
from puffrun.artifacts.request import Ready, Request
from puffrun.artifacts.store.artifact_store import open_store
from puffrun.artifacts.store.garbage import collect_garbage, write_use
from puffrun.artifacts.store.lock import BuildLock, NoLocksError, describe_owner, find_owner
from puffrun.artifacts.store.manifest import Manifest, find_manifest
from puffrun.config import ArtifactSpec
from puffrun.errors import ArtifactError, LockTimeoutError, StoppedError
from puffrun.outcome import ArtifactResult

FIRST_POLL_S, LAST_POLL_S = 0.03, 0.25
SAY_AFTER_S = 1.0
State = Literal["fresh", "built", "shared"]


class Turn:
    """Ensures one artifact. Each step looks again at what the one before it saw."""

    def __init__(self, request: Request, spec: ArtifactSpec, needs: Needs) -> None:
        self._request = request
        self._spec = spec
        self._needs = needs
        self._hashes: Mapping[str, str | None] = {
            name: ready.manifest.outputs_hash for name, ready in needs.items()
        }
        self._cache: HashCache = open_cache(request.site, spec)
        self._store = open_store(request.site.state_dir, spec.name)
        self._started = time.monotonic()

    def ensure(self) -> Ready:
        """Make the artifact usable.

        Raises:
            BuildFailedError: it could not be built, here or by whom we waited for.
            LockTimeoutError: somebody else builds it for too long.
            ArtifactError: the store cannot be written.
            StoppedError: the request was stopped.
        """
        seen = self._observe()
        ready = self._find_fresh(seen)
        if ready is not None:
            return ready
        forced = (StaleReason("forced"),) if not seen.reasons else ()
        self._emit(Stale(self._spec.name, forced or seen.reasons))
        try:
            self._store.create()
            with self._locked(seen) as (lock_fd, answer):
                return answer or self._build(lock_fd, forced or seen.reasons)
        except BuildFailedError as error:
            is_ours = error.failure.run_id == self._request.run_id
            self._emit(Failed(self._spec.name, error.failure, shared=not is_ours))
            raise
        except OSError as error:
            raise ArtifactError(
                f"artifact `{self._spec.name}` is stale ({render_reasons(seen.reasons)}) and its "
                f"store cannot be written: `{error.filename}`: {error.strerror}",
                hint=f"build it where {self._store.path} can be written",
            ) from error

    def _observe(self) -> Observed:
        return observe(self._spec, self._request.site, self._hashes, self._cache)

    def _emit(self, event: ArtifactEvent) -> None:
        self._request.emit(event)

    def _find_fresh(self, seen: Observed) -> Ready | None:
        """Take the way without a lock, on which nothing is written but what is remembered."""
        if self._request.options.force or seen.reasons or seen.manifest is None:
            return None
        self._cache.save()
        if self._request.options.record_use:
            self._use(seen.manifest)
            if find_manifest(self._store, seen.fingerprint) != seen.manifest:
                return None  # taken away between the look and the use
        ready = self._make_ready("fresh", seen, seen.manifest, "fresh")
        self._emit(Fresh(self._spec.name, ready.dir))
        return ready

    @contextlib.contextmanager
    def _locked(self, seen: Observed) -> Iterator[tuple[int | None, Ready | None]]:
        """Hold the lock, or give the answer of somebody who held it."""
        lock = BuildLock(self._store.lock_path)
        try:
            answer = self._await_lock(lock, seen)
        except NoLocksError as error:
            if self._spec.mode == "inplace":
                raise ArtifactError(
                    f"artifact `{self._spec.name}` is built in place, and {self._store.path} "
                    f"has no file locks to do that safely ({error})",
                    hint="keep the project on a file system with locks, or build it staged",
                ) from None
            self._emit(
                Noted(self._spec.name, f"no file locks here ({error}): others may build it too")
            )
            yield None, None
            return
        if answer is not None:
            yield None, answer
            return
        try:
            yield lock.fd, None
        finally:
            lock.release()

    def _await_lock(self, lock: BuildLock, seen: Observed) -> Ready | None:
        """Wait until the lock is ours (None), or whoever holds it has made what we want."""
        poll_s = FIRST_POLL_S
        next_say_s = SAY_AFTER_S
        while not lock.try_acquire():
            answer = self._find_answer(seen)
            if answer is not None:
                return answer
            waited_s = time.monotonic() - self._started
            if waited_s >= self._request.options.lock_wait_s:
                raise self._give_up(waited_s)
            if waited_s >= next_say_s:
                next_say_s = waited_s + SAY_AFTER_S
                self._emit(Waiting(self._spec.name, waited_s, find_owner(self._store)))
            if self._request.stop.wait(poll_s):
                raise StoppedError(self._request.stop.signum or 0)
            poll_s = min(poll_s * 1.5, LAST_POLL_S)
        return None

    def _find_answer(self, seen: Observed) -> Ready | None:
        """See whether the build we wait for has ended, without the lock.

        Raises:
            BuildFailedError: it has failed, and so for us.
        """
        self._share_failure(seen)
        if seen.manifest is not None:
            return None  # it was there before: being built anew, which only the lock can tell
        manifest = find_manifest(self._store, seen.fingerprint)
        if manifest is None or find_damage(self._store, manifest, self._cache):
            return None
        root_dir = self._request.site.root_dir
        if find_missing_installs(self._spec, root_dir, manifest, self._cache):
            return None
        return self._share(seen, manifest)

    def _share_failure(self, seen: Observed) -> None:
        failure = find_failure(self._store)
        request = self._request
        if failure and shares_failure(failure, seen.fingerprint, request.run_id, request.asked_at):
            raise BuildFailedError(failure)

    def _give_up(self, waited_s: float) -> LockTimeoutError:
        owner = find_owner(self._store)
        who = describe_owner(owner) if owner else "somebody"
        after = f", still after {waited_s:.0f} s" if self._request.options.lock_wait_s else ""
        log = f"look at {owner.log_path}, or " if owner else ""
        return LockTimeoutError(
            f"artifact `{self._spec.name}` is being built by {who}{after}",
            hint=f"{log}wait with `{self._request.site.build_command} {self._spec.name}`",
        )

    def _build(self, lock_fd: int | None, reasons: tuple[StaleReason, ...]) -> Ready:
        """Look again now that the lock is ours, and build if it must still be."""
        seen = self._observe()
        if self._is_answered(seen) and seen.manifest is not None:
            if not seen.missing:
                return self._share(seen, seen.manifest)
            install_locked(self._request, seen, seen.manifest)
            return self._finish_install(seen, seen.manifest)
        self._share_failure(seen)
        replaced = None if seen.manifest is None else seen.manifest.attempt
        manifest, seen = build_locked(self._request, seen, self._needs, lock_fd)
        self._use(manifest)
        collect_garbage(self._store, replaced)
        self._cache.save()
        ready = self._make_ready("built", seen, manifest, render_reasons(reasons))
        self._emit(Built(self._spec.name, ready.result.duration_s, ready.dir))
        return ready

    def _is_answered(self, seen: Observed) -> bool:
        """Whether a good build is there; when asked to force, one begun since we were asked."""
        if seen.manifest is None or seen.damage:
            return False
        options = self._request.options
        return not options.force or seen.manifest.started_at >= self._request.asked_at

    def _share(self, seen: Observed, manifest: Manifest) -> Ready:
        self._use(manifest)
        ready = self._make_ready("shared", seen, manifest, "built by somebody else meanwhile")
        self._emit(Shared(self._spec.name, ready.result.duration_s, ready.dir))
        return ready

    def _finish_install(self, seen: Observed, manifest: Manifest) -> Ready:
        self._use(manifest)
        reason = f"installed again: {render_reasons(seen.missing)}"
        ready = self._make_ready("fresh", seen, manifest, reason)
        self._emit(Installed(self._spec.name, seen.missing, ready.dir))
        return ready

    def _use(self, manifest: Manifest) -> None:
        if self._request.options.record_use:
            write_use(self._store, self._request.run_id, manifest.attempt)

    def _make_ready(self, state: State, seen: Observed, manifest: Manifest, reason: str) -> Ready:
        object_dir = self._store.object_dir(manifest.attempt)
        result = ArtifactResult(
            name=self._spec.name,
            state=state,
            reason=reason,
            fingerprint=seen.fingerprint,
            duration_s=round(time.monotonic() - self._started, 3),
            dir=str(object_dir),
            log_path=str(self._store.log_path(manifest.attempt)),
        )
        return Ready(result, manifest, object_dir)
