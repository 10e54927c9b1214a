"""What the last whole checkpoint of a run is, as `puffrun.checkpoint` has left it."""

import json
from typing import Any

from puffrun.rundir.run_dir import RunDir


def read_checkpoint(run_dir: RunDir) -> dict[str, Any] | None:
    """Read what `puffrun.checkpoint` published last: {path, step, at}; None when it has not."""
    try:
        document: dict[str, Any] = json.loads(run_dir.checkpoint_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document
