"""What has to be the same on all ranks besides the model: versions, code, settings."""

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puffrun.package import __version__

# they change how ranks talk or compute; others may hold secrets, or are a rank's own
COMPARED_ENV = ("NCCL_", "TORCH_NCCL_", "GLOO_", "OMP_", "MKL_", "CUBLAS_", "PYTHONHASHSEED")
MAX_FILES = 500


def describe_world(size: int) -> dict[str, Any]:
    """Describe versions, the program's code and arguments, determinism, the process group."""
    import torch
    import torch.distributed as dist

    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "puffrun": __version__,
        "world size": size,
        "arguments": sys.argv[1:],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn": [torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark],
        "tf32": torch.get_float32_matmul_precision(),
        "default dtype": str(torch.get_default_dtype()),
    }
    if dist.is_initialized():
        facts["backend"] = dist.get_backend()
        facts["group size"] = dist.get_world_size()
    return facts | {f"code {name}": digest for name, digest in describe_code().items()}


def describe_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Take the variables that steer communication and threads."""
    return {name: value for name, value in environ.items() if name.startswith(COMPARED_ENV)}


def describe_code() -> dict[str, str]:
    """Hash the program: its main file, and what is imported from beside or below it."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if main is None:
        return {}
    directory = Path(main).resolve().parent
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    start = str(directory) + os.sep
    ours = {str(Path(main).resolve()), *(file for file in files if file.startswith(start))}
    kept = sorted(file for file in ours if "site-packages" not in file)[:MAX_FILES]
    return {file.removeprefix(start): _hash_file(Path(file)) for file in kept}


def _hash_file(path: Path) -> str:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()
    except OSError as error:
        return f"unreadable ({error.strerror})"
