"""Building one artifact while its lock is held: run, check, seal, publish, install."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from puffrun.artifacts.artifact_events import Building, Retrying
from puffrun.artifacts.build_attempt import AttemptEnd, run_attempt
from puffrun.artifacts.build_failure import (
    BuildFailedError,
    Failure,
    read_log_lines,
    render_command,
    suggest_fix,
    write_failure,
)
from puffrun.artifacts.freshness.freshness import Observed, observe_parts, open_cache
from puffrun.artifacts.freshness.outputs import (
    Displaced,
    copy_file,
    find_output_problem,
    install_outputs,
    seal_outputs,
)
from puffrun.artifacts.freshness.reasons import StaleReason, compare_parts, render_reasons
from puffrun.artifacts.recipe import make_recipe
from puffrun.artifacts.request import Ready, Request
from puffrun.artifacts.store.artifact_store import make_attempt_id
from puffrun.artifacts.store.garbage import remove_tree
from puffrun.artifacts.store.lock import owned
from puffrun.artifacts.store.manifest import Manifest, commit_manifest, hash_json
from puffrun.errors import StoppedError
from puffrun.naming import describe_exit

Needs = Mapping[str, Ready]
# hints for ends that say nothing about the source
_HINTS = {
    "timeout": "the log says where it was; `timeout` in the artifact's table may be raised",
    "error": "`cmd` in the artifact's table must name a program that can be run here",
}


@dataclass(frozen=True)
class Attempt:
    """One try to build what was seen. Instants: `started_at` in ns, `started` monotonic."""

    id: str
    seen: Observed
    request: Request
    started_at: int
    started: float

    @property
    def out_dir(self) -> Path:
        """Where its outputs stay."""
        return self.seen.store.object_dir(self.id)

    @property
    def log_path(self) -> Path:
        """What its command prints."""
        return self.seen.store.log_path(self.id)


def build_locked(
    request: Request, seen: Observed, needs: Needs, lock_fd: int | None
) -> tuple[Manifest, Observed]:
    """Build an artifact, once more if its inputs change meanwhile; what is valid from now on.

    Raises:
        BuildFailedError: it failed; those who wait for it will find the same failure.
        StoppedError: the request was stopped.
    """
    _require_tools(request, seen)
    attempt = _begin(request, seen)
    manifest, changes = _try_build(attempt, needs, lock_fd)
    if changes:
        request.emit(Retrying(seen.spec.name, changes))
        attempt = _begin(request, _observe_again(attempt, needs))
        manifest, changes = _try_build(attempt, needs, lock_fd)
    if manifest is None:
        what = f"inputs changed during the build, twice: {render_reasons(changes)}"
        raise _fail(attempt, what, what, hint="build again when nothing writes to the inputs")
    return manifest, attempt.seen


def install_locked(request: Request, seen: Observed, manifest: Manifest) -> None:
    """Write the copies in the tree again.

    Raises:
        BuildFailedError: they could not be written.
    """
    object_dir = seen.store.object_dir(manifest.attempt)
    try:
        install_outputs(seen.spec, request.site.root_dir, object_dir, manifest)
    except OSError as error:
        raise _fail_to_write(_begin(request, seen), error) from error


def _begin(request: Request, seen: Observed) -> Attempt:
    return Attempt(make_attempt_id(), seen, request, time.time_ns(), time.monotonic())


def _observe_again(attempt: Attempt, needs: Needs) -> Observed:
    parts = _gather(attempt, needs)
    return replace(attempt.seen, parts=parts, fingerprint=hash_json(parts), manifest=None)


def _gather(attempt: Attempt, needs: Needs) -> dict[str, Any]:
    hashes = {name: ready.manifest.outputs_hash for name, ready in needs.items()}
    spec, site = attempt.seen.spec, attempt.request.site
    return observe_parts(spec, site, hashes, open_cache(site, spec))


def _try_build(
    attempt: Attempt, needs: Needs, lock_fd: int | None
) -> tuple[Manifest | None, tuple[StaleReason, ...]]:
    """Run the command and publish what it made, or say which inputs changed under it."""
    seen, is_inplace = attempt.seen, attempt.seen.spec.mode == "inplace"
    displaced = Displaced(attempt.request.site.root_dir, seen.spec.outputs if is_inplace else ())
    published = False
    try:
        with owned(seen.store, attempt.id):
            if is_inplace:  # from here on the tree is in flux: nothing may call it fresh
                seen.store.manifest_path(seen.fingerprint).unlink(missing_ok=True)
            attempt.out_dir.mkdir()
            displaced.move_aside()
            _run(attempt, needs, lock_fd)
            changes = compare_parts(seen.parts, _gather(attempt, needs))
            if changes:
                return None, changes
            manifest = _publish(attempt)
            published = manifest.attempt == attempt.id
            displaced.discard()
            _install(attempt, manifest)
            return manifest, ()
    except OSError as error:
        raise _fail_to_write(attempt, error) from error
    finally:
        with suppress(OSError):
            displaced.restore()
        if not published:
            remove_tree(attempt.out_dir)


def _run(attempt: Attempt, needs: Needs, lock_fd: int | None) -> None:
    """Run the command until all that it must leave behind is there.

    Raises:
        BuildFailedError, StoppedError: it is not.
    """
    request, spec = attempt.request, attempt.seen.spec
    root_dir = request.site.root_dir
    dirs = {name: ready.dir for name, ready in needs.items()}
    end = run_attempt(
        make_recipe(spec, root_dir, attempt.out_dir, dirs, request.build_env),
        attempt.log_path,
        timeout_s=spec.timeout_s,
        lock_fd=lock_fd,
        stop=request.stop,
        tick=lambda elapsed_s: request.emit(Building(spec.name, elapsed_s, attempt.log_path)),
    )
    if end.why == "stop":
        raise StoppedError(request.stop.signum or 0)
    what = _describe_end(end, spec.timeout_s)
    if what is None:
        written_dir = root_dir if spec.mode == "inplace" else attempt.out_dir
        problem = find_output_problem(written_dir, spec.outputs)
        what = problem and f"{problem}, although it exited 0"
    if what is not None:
        raise _fail_command(attempt, what, end)


def _describe_end(end: AttemptEnd, timeout_s: float) -> str | None:
    if end.why == "timeout":
        return f"did not end within {timeout_s:g} s"
    if end.why == "error":
        return end.error
    if end.why == "lost":
        return "was lost: its guardian was killed"
    return describe_exit(end.returncode) if end.returncode else None


def _publish(attempt: Attempt) -> Manifest:
    """Seal the outputs and make the manifest the proof of it."""
    seen, site = attempt.seen, attempt.request.site
    if seen.spec.mode == "inplace":
        for output in seen.spec.outputs:
            copy = attempt.out_dir / output
            copy.parent.mkdir(parents=True, exist_ok=True)
            source = site.root_dir / output
            copy_file(source, copy, source.stat().st_mode & 0o777)
    manifest = Manifest(
        name=seen.spec.name,
        fingerprint=seen.fingerprint,
        parts=seen.parts,
        attempt=attempt.id,
        outputs=seal_outputs(attempt.out_dir, seen.spec.outputs),
        started_at=attempt.started_at,
        ended_at=time.time_ns(),
        duration_s=round(time.monotonic() - attempt.started, 3),
    )
    # a manifest that was here before is damaged, or is to be replaced on request
    return commit_manifest(seen.store, manifest, replace=seen.manifest is not None)


def _install(attempt: Attempt, manifest: Manifest) -> None:
    """Write the copies in the tree; in-place outputs of our own are there already."""
    seen, is_ours = attempt.seen, manifest.attempt == attempt.id
    spec = replace(seen.spec, mode="staged") if is_ours else seen.spec
    object_dir = seen.store.object_dir(manifest.attempt)
    install_outputs(spec, attempt.request.site.root_dir, object_dir, manifest)


def _require_tools(request: Request, seen: Observed) -> None:
    for tool, identity in seen.parts["tools"].items():
        if identity is None:
            what = f"its tool `{tool}` is not on PATH"
            raise _fail(_begin(request, seen), what, what, hint=f"install `{tool}`")


def _fail_command(attempt: Attempt, what: str, end: AttemptEnd) -> BuildFailedError:
    cmd = attempt.seen.spec.cmd
    jobs = attempt.request.build_env.get("MAX_JOBS", "")
    lines = read_log_lines(attempt.log_path)
    again = f"{attempt.request.site.build_command} {attempt.seen.spec.name}"
    hint = _HINTS.get(end.why) or suggest_fix(again, end.returncode, lines, jobs)
    summary, detail = f"{Path(cmd[0]).name} {what}", f"`{render_command(cmd)}` {what}"
    # a lost guardian says nothing about the build: others may try
    return _fail(attempt, summary, detail, hint=hint, lines=lines, is_shared=end.why != "lost")


def _fail_to_write(attempt: Attempt, error: OSError) -> BuildFailedError:
    what = f"could not write `{error.filename or attempt.seen.store.path}`: {error.strerror}"
    return _fail(attempt, what, what, hint=f"look at `df {attempt.seen.store.path}` and its rights")


def _fail(
    attempt: Attempt,
    summary: str,
    detail: str,
    *,
    hint: str,
    lines: tuple[str, ...] = (),
    is_shared: bool = True,
) -> BuildFailedError:
    """Make the failure, and leave it for those who wait."""
    failure = Failure(
        name=attempt.seen.spec.name,
        fingerprint=attempt.seen.fingerprint,
        run_id=attempt.request.run_id,
        summary=summary,
        detail=detail,
        lines=lines,
        log_path=str(attempt.log_path) if attempt.log_path.exists() else "",
        hint=hint,
        started_at=attempt.started_at,
        ended_at=time.time_ns(),
    )
    if is_shared:
        write_failure(attempt.seen.store, failure)
    return BuildFailedError(failure)
