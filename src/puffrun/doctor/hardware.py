"""Checks of Python, torch, CUDA, NCCL and the GPUs. Pure."""

import re

from puffrun.doctor.finding import Finding
from puffrun.doctor.machine_facts import Facts, GpuFact

REINSTALL = "pip install --force-reinstall torch"


def describe_software(facts: Facts) -> str:
    """Name Python and torch."""
    software = facts.software
    return f"Python {software.python}, torch {software.torch or 'not installed'}"


def check_software(facts: Facts) -> list[Finding]:
    """Ask whether ranks can import a torch that puffrun knows."""
    software = facts.software
    if software.torch is None:
        return [
            Finding(
                f"torch is not installed for this Python ({software.python})",
                "every rank imports it, and so does the agent that starts them",
                "pip install torch",
            )
        ]
    found = []
    if software.torch_error:
        found.append(
            Finding(
                f"`import torch` fails: {software.torch_error}",
                "no rank would get to its first line",
                REINSTALL,
            )
        )
    if not fits_versions(software.torch, software.torch_wanted):
        found.append(
            Finding(
                f"torch {software.torch}, and puffrun wants {software.torch_wanted}",
                "the agent uses parts of torch.distributed.run that other versions lack",
                f"pip install 'torch{software.torch_wanted}'",
            )
        )
    if not software.gloo and not software.torch_error:
        found.append(
            Finding("this torch has no gloo", "CPU ranks cannot talk to each other", REINSTALL)
        )
    return found


def fits_versions(version: str, wanted: str) -> bool:
    """Compare a version's numbers with clauses such as `>=2.13,<3`."""
    have = _numbers(version)
    for clause in wanted.split(","):
        operator, bound = re.fullmatch(r"\s*([<>=]*)\s*(.*?)\s*", clause).groups()  # type: ignore[union-attr]  # it matches any text
        limit = _numbers(bound)
        if (operator == ">=" and have < limit) or (operator == "<" and have >= limit):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def describe_gpus(facts: Facts) -> str:
    """Count the GPUs by name."""
    gpus = facts.gpus
    if not gpus.all:
        return "none"
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus.all))
    return f"{len(gpus.visible)} of {len(gpus.all)} visible ({names})"


def check_gpus(facts: Facts) -> list[Finding]:
    """Ask whether GPUs answer, are visible and healthy."""
    gpus = facts.gpus
    found = []
    if gpus.problem and not gpus.all and gpus.device_files:
        found.append(
            Finding(
                f"{gpus.device_files} GPU device files, and no GPU answers: {gpus.problem}",
                "a run would silently train on the CPU",
                "nvidia-smi",
            )
        )
    named = [word for word in (gpus.variable or "").split(",") if word.strip()]
    if gpus.all and len(gpus.visible) < len(named):
        found.append(
            Finding(
                f"CUDA_VISIBLE_DEVICES={gpus.variable} names {len(named)} GPUs, CUDA shows "
                f"{len(gpus.visible)}",
                "CUDA stops at the first entry that is no GPU of this machine",
                "unset CUDA_VISIBLE_DEVICES",
            )
        )
    for gpu in gpus.all:
        if gpu.uuid in gpus.visible:
            found += _check_health(gpu)
    return found


def _check_health(gpu: GpuFact) -> list[Finding]:
    found = []
    if gpu.uncorrected_errors:
        found.append(
            Finding(
                f"GPU {gpu.index} has {gpu.uncorrected_errors} uncorrected memory errors",
                "results may be wrong, and a kernel may die at any time",
                f"nvidia-smi -i {gpu.index} -q -d ECC",
            )
        )
    if gpu.recovery not in ("None", "N/A", "", "[N/A]"):
        found.append(
            Finding(
                f"GPU {gpu.index} asks for recovery: {gpu.recovery}",
                "the driver has given up on it until then",
                f"nvidia-smi -i {gpu.index} -q",
            )
        )
    if "prohibited" in gpu.compute_mode.lower():
        found.append(
            Finding(
                f"GPU {gpu.index} is in compute mode {gpu.compute_mode}",
                "no program may use it",
                f"sudo nvidia-smi -i {gpu.index} -c DEFAULT",
            )
        )
    return found


def describe_cuda(facts: Facts) -> str:
    """Name the CUDA of torch and of the driver."""
    if not facts.gpus.all:
        return "not needed: no GPU"
    driver = f"driver {facts.gpus.driver} up to {facts.gpus.driver_cuda}"
    return f"torch's {facts.software.cuda}, {driver}, NCCL {facts.software.nccl}"


def check_cuda(facts: Facts) -> list[Finding]:
    """Ask whether torch, driver and NCCL fit each other and the GPUs; only where there are any."""
    software, gpus = facts.software, facts.gpus
    if not gpus.visible or software.torch is None or software.torch_error:
        return []
    if software.cuda is None:
        return [
            Finding(
                f"torch {software.torch} has no CUDA, and {len(gpus.visible)} GPUs are here",
                "ranks on GPUs fail at their first `.cuda()`",
                "pip install torch --index-url https://download.pytorch.org/whl/cu126",
            )
        ]
    return [*_check_driver(facts), *_check_nccl(facts), *_check_arches(facts)]


def _check_driver(facts: Facts) -> list[Finding]:
    software, gpus = facts.software, facts.gpus
    needed, offered = _numbers(software.cuda or ""), _numbers(gpus.driver_cuda or "")
    found = []
    if needed and offered and offered[:1] < needed[:1]:
        found.append(
            Finding(
                f"torch wants CUDA {software.cuda}, driver {gpus.driver} offers {gpus.driver_cuda}",
                "CUDA does not start: the driver is too old for this torch",
                f"pip install torch --index-url https://download.pytorch.org/whl/cu{offered[0]}x",
            )
        )
    if software.cuda_error and not found:
        found.append(
            Finding(
                f"torch cannot use the GPUs: {software.cuda_error}",
                "ranks on GPUs fail at their first `.cuda()`",
                "python -c 'import torch; torch.zeros(1).cuda()'",
            )
        )
    return found


def _check_nccl(facts: Facts) -> list[Finding]:
    software = facts.software
    loaded, installed = software.nccl, software.installed_nccl
    if not loaded or not installed or _numbers(loaded)[:3] == _numbers(installed)[:3]:
        return []
    return [
        Finding(
            f"torch loads NCCL {loaded}, the package beside it is {installed}",
            "another libnccl.so.2 comes first, from LD_LIBRARY_PATH or LD_PRELOAD",
            "unset LD_LIBRARY_PATH LD_PRELOAD",
        )
    ]


def _check_arches(facts: Facts) -> list[Finding]:
    arches = {arch.removeprefix("sm_").removeprefix("compute_") for arch in facts.software.arches}
    if not arches:
        return []
    found = []
    for gpu in facts.gpus.all:
        capability = gpu.capability.replace(".", "")
        major = gpu.capability.partition(".")[0]
        known = any(arch.rstrip("af")[:-1] == major for arch in arches)
        if gpu.uuid in facts.gpus.visible and capability and not known:
            found.append(
                Finding(
                    f"GPU {gpu.index} ({gpu.name}) is sm_{capability}, torch has "
                    f"{', '.join(facts.software.arches)}",
                    "kernels fail with `no kernel image is available`",
                    "pip install --upgrade torch",
                )
            )
    return found


def describe_holders(facts: Facts) -> str:
    """Count the processes on the GPUs."""
    return f"{len(facts.gpus.holders) or 'no'} processes hold GPUs" if facts.gpus.all else "no GPU"


def check_holders(facts: Facts) -> list[Finding]:
    """Name the processes that hold memory of a GPU that a run would use."""
    index = {gpu.uuid: gpu.index for gpu in facts.gpus.all}
    return [
        Finding(
            f"GPU {index.get(h.gpu_uuid, '?')} is held by {h.name} (pid {h.pid}, {h.memory} MiB)",
            "a run on it may run out of memory, or wait for it",
            f"kill {h.pid}",
        )
        for h in facts.gpus.holders
        if h.gpu_uuid in facts.gpus.visible
    ]
