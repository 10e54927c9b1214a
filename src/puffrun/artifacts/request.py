"""What one call of `ensure_artifacts` is about, shared by all artifacts of it."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from puffrun.artifacts.artifact_events import ArtifactEvent
from puffrun.artifacts.freshness.freshness import Site
from puffrun.artifacts.stop_token import StopToken
from puffrun.artifacts.store.manifest import Manifest
from puffrun.outcome import ArtifactResult
from puffrun.process import find_stat

LOCK_WAIT_S = 3600.0


@dataclass(frozen=True)
class BuildOptions:
    """How to ensure artifacts.

    `jobs`: compiler jobs in all (None: as the machine has). `lock_wait_s`: how long to wait for
    somebody else's build, 0 not at all. `asked_at`: when the user asked (`time.time_ns()`, None:
    now); failures later than that are shared. `record_use`: keep the artifacts until
    `release_artifacts`, or until this process is gone.
    """

    jobs: int | None = None
    force: bool = False
    lock_wait_s: float = LOCK_WAIT_S
    asked_at: int | None = None
    record_use: bool = False


def find_process_start() -> int:
    """Say when this process was started (`time.time_ns()`): when the user asked.

    A failure that came while this process was still importing answers it too.
    """
    me = find_stat(os.getpid())
    if me is None:
        return time.time_ns()
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - me.started * 10**9 // ticks_per_s
    return time.time_ns() - max(0, age_ns)


@dataclass(frozen=True)
class Request:
    """One call, with everything decided."""

    site: Site
    run_id: str
    options: BuildOptions
    asked_at: int
    build_env: Mapping[str, str]  # the user's, and the share of jobs
    emit: Callable[[ArtifactEvent], None]
    stop: StopToken


@dataclass(frozen=True)
class Ready:
    """An artifact that can be used."""

    result: ArtifactResult
    manifest: Manifest
    dir: Path
