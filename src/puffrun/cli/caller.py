"""Who called, and how: what the commands get from outside."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Caller:
    """The command line, the environment and the directory of this call.

    `state_dir` is filled in when the config is known; a crash log goes there.
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    cwd: Path = Path()
    state_dir: Path | None = None
