"""puffrun: launch multi-rank PyTorch training: built once, never hung, the true cause said.

What a training program imports from here is in `puffrun.library`, and only loaded when it is used:
the launcher, which imports this package too, never pays for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from puffrun.package import __version__

if TYPE_CHECKING:
    from puffrun.errors import DisagreementError
    from puffrun.library.agreement.agree import agree, barrier
    from puffrun.library.agreement.run_once import main_first, run_once
    from puffrun.library.checkpoint import checkpoint, latest_checkpoint
    from puffrun.library.preflight.guard import guard
    from puffrun.library.preflight.preflight import preflight
    from puffrun.library.progress import progress

__all__ = [
    "DisagreementError",
    "__version__",
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
    "agree": "puffrun.library.agreement.agree",
    "barrier": "puffrun.library.agreement.agree",
    "checkpoint": "puffrun.library.checkpoint",
    "guard": "puffrun.library.preflight.guard",
    "latest_checkpoint": "puffrun.library.checkpoint",
    "main_first": "puffrun.library.agreement.run_once",
    "preflight": "puffrun.library.preflight.preflight",
    "progress": "puffrun.library.progress",
    "run_once": "puffrun.library.agreement.run_once",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module `puffrun` has no attribute `{name}`")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
