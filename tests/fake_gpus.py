"""Machines with GPUs for tests: a real shared library in the place of NVML."""

import subprocess
from pathlib import Path

SOURCE_PATH = Path(__file__).parent / "programs" / "fake_nvml.c"


def build_fake_nvml(directory: Path) -> Path:
    """Compile the stand-in; a process that has the directory in LD_LIBRARY_PATH loads it."""
    library_path = directory / "libnvidia-ml.so.1"
    subprocess.run(
        ["cc", "-Wall", "-Werror", "-shared", "-fPIC", str(SOURCE_PATH), "-o", str(library_path)],
        check=True,
        timeout=60,
    )
    return directory
