"""Making all artifacts of a request usable: needs first, the rest side by side."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from graphlib import TopologicalSorter

from puffrun.artifacts.artifact_events import ArtifactEvent
from puffrun.artifacts.build_failure import BuildFailedError, Failure
from puffrun.artifacts.freshness.freshness import make_site
from puffrun.artifacts.graph import select_artifacts
from puffrun.artifacts.recipe import detect_slots, share_jobs
from puffrun.artifacts.request import BuildOptions, Ready, Request
from puffrun.artifacts.stop_token import StopToken
from puffrun.artifacts.turn import Turn
from puffrun.config import ArtifactSpec, RunConfig
from puffrun.errors import ArtifactError, LockTimeoutError, PuffrunError
from puffrun.outcome import ArtifactResult
from puffrun.rundir import ENV_RUN_ID

INTERRUPTED = 2  # SIGINT, for a caller that lets KeyboardInterrupt fly


class ArtifactsFailedError(ArtifactError):
    """Artifacts could not be built; `results` tells how each that was tried ended."""

    def __init__(
        self, message: str, *, hint: str | None, results: tuple[ArtifactResult, ...]
    ) -> None:
        super().__init__(message, hint=hint)
        self.results = results


class ArtifactsLockedError(LockTimeoutError):
    """Somebody else builds an artifact for too long; `results` as above."""

    def __init__(
        self, message: str, *, hint: str | None, results: tuple[ArtifactResult, ...]
    ) -> None:
        super().__init__(message, hint=hint)
        self.results = results


def ensure_artifacts(  # noqa: PLR0913  # the whole context of a call that has effects
    config: RunConfig,
    names: Sequence[str] | None,
    *,
    env: Mapping[str, str],
    run_id: str,
    options: BuildOptions,
    emit: Callable[[ArtifactEvent], None],
    stop: StopToken,
) -> tuple[ArtifactResult, ...]:
    """Make the named artifacts (None: all) and what they need usable, building what is stale.

    `emit` is told what happens, one event at a time, from any thread.

    Raises:
        UsageError: a name is not known, or an artifact makes no sense.
        ArtifactsFailedError: an artifact could not be built.
        ArtifactsLockedError: somebody else builds one for too long.
        StoppedError: `stop` was set; nothing of a build is left.
    """
    selected = select_artifacts(config.artifacts, names)
    if not selected:
        return ()
    request = Request(
        site=make_site(config, env),
        run_id=run_id,
        options=options,
        asked_at=options.asked_at or time.time_ns(),
        build_env={**env, ENV_RUN_ID: run_id},
        emit=_one_at_a_time(emit),
        stop=stop,
    )
    return _Ensuring(request, selected).run()


def _one_at_a_time(emit: Callable[[ArtifactEvent], None]) -> Callable[[ArtifactEvent], None]:
    lock = threading.Lock()

    def emit_alone(event: ArtifactEvent) -> None:
        with lock:
            emit(event)

    return emit_alone


class _Ensuring:
    """Walks the graph. After a failure nothing new is begun; what runs is let to end."""

    def __init__(self, request: Request, selected: tuple[ArtifactSpec, ...]) -> None:
        self._selected = {spec.name: spec for spec in selected}
        slots = request.options.jobs or detect_slots()
        self._width = min(slots, len(selected))
        share = max(1, slots // self._width)
        self._request = replace(request, build_env=share_jobs(request.build_env, share))
        self._ready: dict[str, Ready] = {}
        self._errors: dict[str, BuildFailedError | PuffrunError] = {}

    def run(self) -> tuple[ArtifactResult, ...]:
        if self._width == 1:
            self._run_in_turn()
        else:
            self._run_side_by_side()
        results = tuple(self._find_results())
        for error in self._errors.values():
            raise _as_public_error(error, results)
        return results

    def _run_in_turn(self) -> None:
        for name in self._selected:
            if not self._errors:
                self._try(name)

    def _run_side_by_side(self) -> None:
        sorter = TopologicalSorter({name: spec.needs for name, spec in self._selected.items()})
        sorter.prepare()
        running: dict[Future[None], str] = {}
        with ThreadPoolExecutor(self._width, "artifact") as pool:
            try:
                while running or (sorter.is_active() and not self._errors):
                    for name in sorter.get_ready() if not self._errors else ():
                        running[pool.submit(self._try, name)] = name
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        name = running.pop(future)
                        future.result()
                        sorter.done(name)
            except BaseException:
                self._request.stop.set(INTERRUPTED)  # or the pool would wait for whole builds
                raise

    def _try(self, name: str) -> None:
        spec = self._selected[name]
        needs = {need: self._ready[need] for need in spec.needs}
        try:
            self._ready[name] = Turn(self._request, spec, needs).ensure()
        except (BuildFailedError, PuffrunError) as error:
            self._errors[name] = error

    def _find_results(self) -> list[ArtifactResult]:
        results = []
        for name in self._selected:
            error = self._errors.get(name)
            if name in self._ready:
                results.append(self._ready[name].result)
            elif isinstance(error, BuildFailedError):
                results.append(_make_failed_result(error.failure))
        return results


def _make_failed_result(failure: Failure) -> ArtifactResult:
    return ArtifactResult(
        name=failure.name,
        state="failed",
        reason=failure.summary,
        fingerprint=failure.fingerprint,
        duration_s=round(failure.duration_s, 3),
        log_path=failure.log_path or None,
    )


def _as_public_error(
    error: BuildFailedError | PuffrunError, results: tuple[ArtifactResult, ...]
) -> PuffrunError:
    if isinstance(error, BuildFailedError):
        failure = error.failure
        return ArtifactsFailedError(failure.message, hint=failure.hint, results=results)
    if isinstance(error, LockTimeoutError):
        return ArtifactsLockedError(error.message, hint=error.hint, results=results)
    if isinstance(error, ArtifactError):
        return ArtifactsFailedError(error.message, hint=error.hint, results=results)
    return error
