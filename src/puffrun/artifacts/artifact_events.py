"""What happens to artifacts while they are ensured, told as it happens."""

from dataclasses import dataclass
from pathlib import Path

from puffrun.artifacts.build_failure import Failure
from puffrun.artifacts.freshness.reasons import StaleReason
from puffrun.artifacts.store.lock import Owner


@dataclass(frozen=True)
class Fresh:
    """Nothing to do."""

    name: str
    dir: Path


@dataclass(frozen=True)
class Stale:
    """It must be built, for these reasons."""

    name: str
    reasons: tuple[StaleReason, ...]


@dataclass(frozen=True)
class Waiting:
    """Somebody else builds it; told after a second, and every second from then on."""

    name: str
    waited_s: float
    owner: Owner | None


@dataclass(frozen=True)
class Building:
    """It is being built; told at the start, and every second from then on."""

    name: str
    elapsed_s: float
    log_path: Path


@dataclass(frozen=True)
class Retrying:
    """Inputs changed while it was built, so it is built once more."""

    name: str
    reasons: tuple[StaleReason, ...]


@dataclass(frozen=True)
class Built:
    """It was built, here."""

    name: str
    duration_s: float
    dir: Path


@dataclass(frozen=True)
class Shared:
    """Somebody else built it while we waited."""

    name: str
    waited_s: float
    dir: Path


@dataclass(frozen=True)
class Installed:
    """It was built before, and its copies in the tree were written again."""

    name: str
    reasons: tuple[StaleReason, ...]
    dir: Path


@dataclass(frozen=True)
class Failed:
    """It could not be built; `shared`: somebody else tried, and we waited for it."""

    name: str
    failure: Failure
    shared: bool


@dataclass(frozen=True)
class Noted:
    """Something worth knowing that changes nothing."""

    name: str
    text: str


ArtifactEvent = (
    Fresh | Stale | Waiting | Building | Retrying | Built | Shared | Installed | Failed | Noted
)
