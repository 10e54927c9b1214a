"""Artifacts: what a run needs built, is built once, by one process, before any rank exists.

The lock is for efficiency, the atomic publish for correctness: a build works in a directory of
its own, its outputs are checked and sealed, and one manifest file is the proof that they count.
"""

from puffrun.artifacts.artifact_events import ArtifactEvent
from puffrun.artifacts.clean import clean_artifacts
from puffrun.artifacts.ensure import ArtifactsFailedError, ArtifactsLockedError, ensure_artifacts
from puffrun.artifacts.freshness.cache_key import make_cache_key
from puffrun.artifacts.freshness.freshness import Freshness, check_artifacts
from puffrun.artifacts.freshness.reasons import StaleReason, render_reasons
from puffrun.artifacts.request import LOCK_WAIT_S, BuildOptions, find_process_start
from puffrun.artifacts.stop_token import StopToken
from puffrun.artifacts.store.garbage import release_artifacts

__all__ = [
    "LOCK_WAIT_S",
    "ArtifactEvent",
    "ArtifactsFailedError",
    "ArtifactsLockedError",
    "BuildOptions",
    "Freshness",
    "StaleReason",
    "StopToken",
    "check_artifacts",
    "clean_artifacts",
    "ensure_artifacts",
    "find_process_start",
    "make_cache_key",
    "release_artifacts",
    "render_reasons",
]
