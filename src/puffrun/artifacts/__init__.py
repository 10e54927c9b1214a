"""Artifacts: what a run needs built, is built once, by one process, before any rank exists.

The lock is for efficiency, the atomic publish for correctness: a build works in a directory of
its own, its outputs are checked and sealed, and one manifest file is the proof that they count.
"""

from puffrun.artifacts.clean import clean_artifacts
from puffrun.artifacts.ensure import ArtifactsFailedError, ArtifactsLockedError, ensure_artifacts
from puffrun.artifacts.events import ArtifactEvent
from puffrun.artifacts.freshness import Freshness, check_artifacts
from puffrun.artifacts.garbage import release_artifacts
from puffrun.artifacts.key import make_cache_key
from puffrun.artifacts.reasons import StaleReason, render_reasons
from puffrun.artifacts.request import LOCK_WAIT_S, BuildOptions, find_process_start
from puffrun.artifacts.stop import StopToken

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
