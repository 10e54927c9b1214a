"""Which GPUs CUDA would show: CUDA_VISIBLE_DEVICES, read as CUDA reads it. Pure."""

import re
from dataclasses import dataclass

from puffrun.cluster.nvml import Gpu

_UUID_STARTS = ("GPU-", "MIG-")


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU that a rank may have; `entry` is its word for CUDA_VISIBLE_DEVICES."""

    entry: str
    gpu: Gpu


def find_visible(gpus: tuple[Gpu, ...], variable: str | None) -> tuple[VisibleGpu, ...]:
    """Return what CUDA shows for a value of CUDA_VISIBLE_DEVICES (None: unset).

    As in the CUDA Programming Guide and in `torch.cuda`: the list ends at the first entry that
    is no GPU (`-1`, a wrong number, garbage) or is of another kind than the first, and an entry
    given twice makes all of it void. Of MIG instances a process gets the first only.
    """
    if variable is None:
        return _find_default(gpus)
    visible: list[VisibleGpu] = []
    words = [word.strip() for word in variable.split(",")]
    for word in words:
        gpu = find_gpu(gpus, word)
        if gpu is None or _kind(word) != _kind(words[0]):
            break
        if any(gpu == v.gpu for v in visible):
            return ()
        visible.append(VisibleGpu(word, gpu))
    is_mig = bool(visible) and visible[0].gpu.parent is not None
    return tuple(visible[:1] if is_mig else visible)


def _kind(word: str) -> str:
    """`GPU-`, `MIG-`, or nothing for a number."""
    return word[:4] if word.startswith(_UUID_STARTS) else ""


def _find_default(gpus: tuple[Gpu, ...]) -> tuple[VisibleGpu, ...]:
    """All whole GPUs; where all are in MIG mode one instance, which is what CUDA uses.

    Where GPUs differ, CUDA counts the fastest first and NVML by bus, so a number is ambiguous.
    """
    whole = [g for g in gpus if g.parent is None]
    if not whole:
        return tuple(VisibleGpu(g.uuid, g) for g in gpus[:1])
    alike = len({g.name for g in whole}) == 1
    return tuple(VisibleGpu(str(g.index) if alike else g.uuid, g) for g in whole)


def find_gpu(gpus: tuple[Gpu, ...], word: str) -> Gpu | None:
    """Find the GPU that an entry means: a number, a UUID, or the unique start of a UUID.

    A number is read as C's strtoul does, so `1gpu` is 1. A number of a GPU in MIG mode means
    its first instance.
    """
    if word.startswith(_UUID_STARTS):
        matches = [g for g in gpus if g.uuid.startswith(word)]
        if not matches:
            matches = [g for g in gpus if g.parent is not None and g.parent.startswith(word)][:1]
        return matches[0] if len(matches) == 1 else None
    digits = re.match(r"\+?([0-9]+)", word)
    if digits is None:
        return None
    return next((g for g in gpus if g.index == int(digits[1])), None)
