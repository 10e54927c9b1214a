"""The names and formats of a run's files: the only contract between the launcher and the ranks.

Imported by the ranks too, so it stays on the standard library and imports nothing heavy.
"""

from puffrun.rundir.atomic_write import write_atomically
from puffrun.rundir.checkpoint_record import read_checkpoint
from puffrun.rundir.full_disk import find_full_disk
from puffrun.rundir.run_dir import (
    ENV_ARTIFACT_PREFIX,
    ENV_RUN_DIR,
    ENV_RUN_ID,
    RunDir,
    artifact_env_name,
    check_run_dir,
    last_path,
    make_run_id,
    runs_dir,
)

__all__ = [
    "ENV_ARTIFACT_PREFIX",
    "ENV_RUN_DIR",
    "ENV_RUN_ID",
    "RunDir",
    "artifact_env_name",
    "check_run_dir",
    "find_full_disk",
    "last_path",
    "make_run_id",
    "read_checkpoint",
    "runs_dir",
    "write_atomically",
]
