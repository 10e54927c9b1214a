"""The ABI parts of a fingerprint: what a binary is built for, beyond its sources and tools."""

import ast
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from puffrun.artifacts.freshness.hashing import HashCache
from puffrun.process import run_captured

NVIDIA_DIR = Path("/proc/driver/nvidia")
CPUINFO_PATH = Path("/proc/cpuinfo")
GPU_TIMEOUT_S = 30.0
TORCH_FIELDS = ("__version__", "cuda", "hip", "debug")
NO_GPU = "no GPU"


@dataclass(frozen=True)
class ProbeSite:
    """What a probe may look at."""

    env: Mapping[str, str]
    cache: HashCache


def probe_machine() -> str:
    """Tell the machine's architecture; part of every fingerprint."""
    return os.uname().machine


def _probe_python_abi(_site: ProbeSite) -> str:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0].removeprefix(".").removesuffix(".so")
    return f"{suffix} {os.confstr('CS_GNU_LIBC_VERSION') or 'no glibc'}"


def _probe_torch(_site: ProbeSite) -> str:
    """Read torch's version from its source text: importing it would take seconds."""
    spec = importlib.machinery.PathFinder.find_spec("torch") or importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "not installed"
    return read_torch_version(Path(spec.origin).parent / "version.py")


def read_torch_version(path: Path) -> str:
    """Pick the version, the CUDA and the ROCm version from torch/version.py."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return "not readable"
    fields = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    values = [(name, fields.get(name)) for name in TORCH_FIELDS]
    return " ".join(
        f"{name.strip('_')}={value!s}" for name, value in values if value not in (None, False)
    )


def _probe_cuda_arch(site: ProbeSite) -> str:
    """Tell the architectures that kernels are compiled for."""
    asked = site.env.get("TORCH_CUDA_ARCH_LIST")
    if asked:
        return asked
    signature = _describe_gpus(NVIDIA_DIR)
    if signature is None:
        return NO_GPU
    ask = partial(_ask_compute_capabilities, site.env)
    return site.cache.text("probe cuda-arch", signature, ask) or NO_GPU


def _describe_gpus(nvidia_dir: Path) -> str | None:
    """Tell the driver and the GPUs from /proc, without a process; None when there are none."""
    models = sorted(
        line
        for path in nvidia_dir.glob("gpus/*/information")
        for line in path.read_text(errors="replace").splitlines()
        if line.startswith("Model")
    )
    if not models:
        return None
    version = (nvidia_dir / "version").read_text(errors="replace")
    return hashlib.sha256("\n".join([version, *models]).encode()).hexdigest() + " "


def _ask_compute_capabilities(env: Mapping[str, str]) -> str:
    """Ask the driver's own tool; empty when it cannot tell."""
    argv = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        captured = run_captured(argv, env=env, timeout_s=GPU_TIMEOUT_S)
    except OSError:
        return ""
    capabilities = {line.strip() for line in captured.stdout.decode().splitlines() if line.strip()}
    return ";".join(sorted(capabilities)) if captured.returncode == 0 else ""


def _probe_cpu_native(_site: ProbeSite) -> str:
    return describe_cpu(CPUINFO_PATH.read_text(errors="replace"))


def describe_cpu(cpuinfo: str) -> str:
    """Tell the CPU's model and a hash of its features: what `-march=native` depends on."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            fields.setdefault(key.strip(), value.strip())
    model = fields.get("model name", fields.get("CPU part", platform.machine()))
    flags = " ".join(sorted(fields.get("flags", fields.get("Features", "")).split()))
    return f"{model} features {hashlib.sha256(flags.encode()).hexdigest()[:8]}"


PROBES: dict[str, Callable[[ProbeSite], str]] = {
    "python-abi": _probe_python_abi,
    "torch": _probe_torch,
    "cuda-arch": _probe_cuda_arch,
    "cpu-native": _probe_cpu_native,
}
