"""Which GPUs this machine has: NVML first, `nvidia-smi` where that does not answer."""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from puffrun.cluster.nvml import Gpu, NvmlError, load_nvml_gpus

NVML_TIMEOUT_S = 20.0  # a driver that is starting up takes seconds; a broken one never answers
SMI_ARGV = ("nvidia-smi", "-L")


class Captured(Protocol):
    """What a program printed; `returncode` is None when it had to be killed."""

    @property
    def returncode(self) -> int | None:
        """The exit code, as `subprocess` has it."""

    @property
    def stdout(self) -> bytes:
        """Everything it wrote."""


RunCaptured = Callable[[Sequence[str]], Captured]


@dataclass(frozen=True)
class Inventory:
    """The GPUs of this machine. `problem` says why there are none, when something failed."""

    gpus: tuple[Gpu, ...] = ()
    problem: str | None = None


def detect_gpus(
    run_captured: RunCaptured,
    load: Callable[[], tuple[Gpu, ...]] = load_nvml_gpus,
    timeout_s: float = NVML_TIMEOUT_S,
) -> Inventory:
    """Ask NVML, else `nvidia-smi`, for all GPUs, whatever CUDA_VISIBLE_DEVICES says.

    Neither being there is no error: it is a machine without NVIDIA GPUs.
    """
    nvml = _ask_with_deadline(load, timeout_s)
    if nvml.problem is None:
        return nvml
    try:
        captured = run_captured(SMI_ARGV)
    except OSError:
        return Inventory(problem=f"{nvml.problem}, and no nvidia-smi")
    if captured.returncode != 0:
        return Inventory(problem=f"{nvml.problem}, and nvidia-smi failed")
    return Inventory(parse_smi(captured.stdout.decode(errors="replace")))


def _ask_with_deadline(load: Callable[[], tuple[Gpu, ...]], timeout_s: float) -> Inventory:
    """Call NVML on a thread of its own: a wedged driver must not wedge the launcher."""
    answers: list[Inventory] = []

    def ask() -> None:
        try:
            answers.append(Inventory(load()))
        except NvmlError as error:
            answers.append(Inventory(problem=str(error)))

    thread = threading.Thread(target=ask, name="nvml", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answers[0] if answers else Inventory(problem=f"NVML did not answer in {timeout_s:g} s")


def parse_smi(text: str) -> tuple[Gpu, ...]:
    """Read `nvidia-smi -L`, where a GPU in MIG mode is followed by its indented instances."""
    gpus: list[Gpu] = []
    whole: Gpu | None = None
    for line in text.splitlines():
        found = re.fullmatch(r"GPU (\d+): (.*) \(UUID: (GPU-[^)]+)\)\s*", line)
        instance = re.fullmatch(r"\s+(MIG .*?)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)\s*", line)
        if found:
            whole = Gpu(int(found[1]), found[3], found[2])
            gpus.append(whole)
        elif instance and whole:
            if gpus[-1] is whole:
                gpus.pop()
            name = f"{whole.name} {instance[1]}"
            gpus.append(Gpu(whole.index, instance[2], name, whole.uuid))
    return tuple(gpus)
