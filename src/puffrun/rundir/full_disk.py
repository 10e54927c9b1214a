"""What a full disk does to a run is told, where it can be: is the run directory's disk full?"""

import errno
import os
from contextlib import suppress

from puffrun.rundir.run_dir import RunDir

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
PROBE_BYTES = 1 << 16  # a recorded exception with a long message


def find_full_disk(run_dir: RunDir) -> str | None:
    """Try whether the run directory takes another file; why not, when its disk is full."""
    probe_path = run_dir.path / f".probe.{os.getpid()}"
    try:
        with probe_path.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())  # where blocks are only given out when they are written
    except OSError as error:
        return error.strerror if error.errno in FULL_DISK else None
    finally:
        with suppress(OSError):
            probe_path.unlink()
    return None
