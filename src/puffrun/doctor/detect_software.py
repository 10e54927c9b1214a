"""Detects Python, torch and the GPUs. torch is imported by a child process, never here."""

import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from puffrun.cluster import Allocation
from puffrun.doctor.machine_facts import GpuFact, Gpus, Holder, Software
from puffrun.process import run_captured

TORCH_TIMEOUT_S = 120.0  # a cold torch on a network file system takes a minute
SMI_TIMEOUT_S = 30.0
GPU_FIELDS = (
    "index,uuid,name,driver_version,compute_cap,ecc.errors.uncorrected.volatile.total,compute_mode"
)
_ASK_TORCH = """
import json, warnings
warnings.simplefilter("ignore")
import torch, torch.distributed as dist
told = {"torch": str(torch.__version__), "cuda": torch.version.cuda or torch.version.hip}
told["gloo"] = dist.is_available() and dist.is_gloo_available()
if told["cuda"]:
    try:
        told["arches"] = torch.cuda.get_arch_list()
        told["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        torch.cuda.init()
    except Exception as error:
        told["cuda_error"] = f"{type(error).__name__}: {error}".splitlines()[0]
print(json.dumps(told))
"""


def detect_software(environ: Mapping[str, str], python: str) -> Software:
    """Ask a Python as ranks have it for its torch."""
    software: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": _find_version("torch"),
        "torch_wanted": _find_wanted("torch"),
        "installed_nccl": next(
            (v for n in ("nvidia-nccl-cu13", "nvidia-nccl-cu12") if (v := _find_version(n))), None
        ),
    }
    if software["torch"] is None:
        return Software(**software)
    return Software(**(software | _ask_torch(environ, python)))


def _ask_torch(environ: Mapping[str, str], python: str) -> dict[str, Any]:
    try:
        answer = run_captured(
            [python, "-P", "-c", _ASK_TORCH], env=environ, timeout_s=TORCH_TIMEOUT_S
        )
    except OSError as error:
        return {"torch_error": f"{python} cannot be started: {error.strerror}"}
    if answer.returncode is None:
        return {"torch_error": f"it did not end in {TORCH_TIMEOUT_S:g} s"}
    if answer.returncode != 0:
        return {"torch_error": _pick_last_line(answer.stderr, answer.returncode)}
    told: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return told | {"arches": tuple(told.get("arches", ()))}


def _pick_last_line(stderr: bytes, returncode: int) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"Python ended with {returncode}"


def _find_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _find_wanted(name: str) -> str:
    """Read the bounds from puffrun's own metadata."""
    try:
        requirements = importlib.metadata.requires("puffrun") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = next((r for r in requirements if re.match(rf"{name}\b", r)), name)
    return ",".join(sorted(found.removeprefix(name).strip(" ()").split(","), reverse=True))


def detect_gpus(allocation: Allocation, environ: Mapping[str, str]) -> Gpus:
    """Ask the driver's own tool for what NVML's inventory does not have."""
    inventory = allocation.inventory
    visible = tuple(v.gpu.uuid for v in allocation.gpus)
    files = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]  # noqa: PTH208 - names only
    base = Gpus(
        visible=visible,
        variable=allocation.visible_variable,
        problem=inventory.problem,
        device_files=len(files),
    )
    if not inventory.gpus:
        return base
    table = _ask_smi(environ, f"--query-gpu={GPU_FIELDS}", "--format=csv,noheader,nounits")
    gpus = parse_gpus(table) or tuple(GpuFact(g.index, g.uuid, g.name) for g in inventory.gpus)
    apps = _ask_smi(
        environ,
        "--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
        "--format=csv,noheader,nounits",
    )
    return Gpus(
        all=gpus,
        visible=visible,
        variable=allocation.visible_variable,
        device_files=len(files),
        driver=_first_driver(table),
        driver_cuda=parse_driver_cuda(_ask_smi(environ)),
        holders=parse_holders(apps),
    )


def _ask_smi(environ: Mapping[str, str], *options: str) -> str:
    try:
        answer = run_captured(["nvidia-smi", *options], env=environ, timeout_s=SMI_TIMEOUT_S)
    except OSError:
        return ""
    return answer.stdout.decode("utf-8", "replace") if answer.returncode == 0 else ""


def _rows(text: str, width: int) -> list[Sequence[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == width]


def parse_gpus(text: str) -> tuple[GpuFact, ...]:
    """Read `nvidia-smi --query-gpu` in the order of `GPU_FIELDS`."""
    return tuple(
        GpuFact(
            index=int(row[0]),
            uuid=row[1],
            name=row[2],
            capability=row[4],
            uncorrected_errors=int(row[5]) if row[5].isdecimal() else 0,
            compute_mode=row[6],
        )
        for row in _rows(text, 7)
        if row[0].isdecimal()
    )


def _first_driver(text: str) -> str | None:
    return next((row[3] for row in _rows(text, 7)), None)


def parse_holders(text: str) -> tuple[Holder, ...]:
    """Read `nvidia-smi --query-compute-apps`."""
    return tuple(
        Holder(row[0], int(row[1]), Path(row[2]).name, int(row[3]) if row[3].isdecimal() else 0)
        for row in _rows(text, 4)
        if row[1].isdecimal()
    )


def parse_driver_cuda(text: str) -> str | None:
    """Find `CUDA Version: 12.4` in what plain `nvidia-smi` prints."""
    found = re.search(r"CUDA Version:\s*(\d+\.\d+)", text)
    return found[1] if found else None
