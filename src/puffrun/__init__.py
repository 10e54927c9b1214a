"""puffrun: launch multi-rank PyTorch training: built once, never hung, the true cause said.

What a training program imports from here is in `puffrun.rank`, and only loaded when it is used:
the launcher, which imports this package too, never pays for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puffrun.errors import DisagreementError
    from puffrun.rank.agree import agree, barrier
    from puffrun.rank.checkpoint import checkpoint, latest_checkpoint
    from puffrun.rank.guard import guard
    from puffrun.rank.once import main_first, run_once
    from puffrun.rank.preflight import preflight
    from puffrun.rank.progress import progress

__version__ = "0.1.0"
__all__ = [
    "DisagreementError",
    "agree",
    "barrier",
    "checkpoint",
    "guard",
    "latest_checkpoint",
    "main_first",
    "preflight",
    "progress",
    "run_once",
]

_HOMES = {
    "DisagreementError": "puffrun.errors",
    "agree": "puffrun.rank.agree",
    "barrier": "puffrun.rank.agree",
    "checkpoint": "puffrun.rank.checkpoint",
    "guard": "puffrun.rank.guard",
    "latest_checkpoint": "puffrun.rank.checkpoint",
    "main_first": "puffrun.rank.once",
    "preflight": "puffrun.rank.preflight",
    "progress": "puffrun.rank.progress",
    "run_once": "puffrun.rank.once",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module `puffrun` has no attribute `{name}`")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
