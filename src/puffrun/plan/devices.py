"""Which devices the ranks get, and so how many ranks there are. Pure."""

from dataclasses import dataclass
from typing import Literal

from puffrun.cluster import Allocation, VisibleGpu, find_gpu
from puffrun.config import LaunchOptions
from puffrun.errors import UsageError

DEFAULT_CPU_RANKS = 2


@dataclass(frozen=True)
class Devices:
    """One device per local rank. `entries` are for CUDA_VISIBLE_DEVICES; empty on the CPU."""

    ranks: int
    entries: tuple[str, ...] = ()
    name: str = "CPU"

    @property
    def backend(self) -> Literal["gloo", "nccl"]:
        """The collective library that fits."""
        return "nccl" if self.entries else "gloo"


def choose_devices(options: LaunchOptions, allocation: Allocation) -> Devices:
    """Choose the devices: the GPUs asked for, N ranks on the CPU, or whatever there is.

    Nothing asked for is `auto`: all visible GPUs when there are some, else `cpus` ranks on the
    CPU, 2 by default. Only what CUDA_VISIBLE_DEVICES shows is ever used.

    Raises:
        UsageError: a GPU was asked for that is not visible.
    """
    visible = allocation.gpus
    if options.gpu_ids is not None:
        return _use_gpus(_pick_ids(options.gpu_ids, options.gpus, allocation))
    if isinstance(options.gpus, int):
        if options.gpus > len(visible):
            raise _too_few(options.gpus, allocation)
        return _use_gpus(visible[: options.gpus])
    if options.gpus == "all":
        if not visible:
            raise _too_few("all", allocation)
        return _use_gpus(visible)
    if visible and (options.gpus == "auto" or options.cpus is None):
        return _use_gpus(visible)
    return Devices(options.cpus or DEFAULT_CPU_RANKS)


def _use_gpus(gpus: tuple[VisibleGpu, ...]) -> Devices:
    names = dict.fromkeys(v.gpu.name for v in gpus)
    return Devices(len(gpus), tuple(v.entry for v in gpus), ", ".join(names))


def _pick_ids(
    ids: tuple[str, ...], count: int | str | None, allocation: Allocation
) -> tuple[VisibleGpu, ...]:
    if isinstance(count, int) and count != len(ids):
        raise UsageError(
            f"{_count_gpus(count)} asked for, but --gpu-ids names {len(ids)}: {','.join(ids)}",
            hint="give one of `--gpus` and `--gpu-ids`",
        )
    picked = []
    for word in ids:
        gpu = find_gpu(allocation.inventory.gpus, word)
        match = next((v for v in allocation.gpus if v.gpu == gpu), None)
        if match is None:
            raise UsageError(
                f"GPU {word} was asked for, {_describe_found(allocation)}",
                hint=_hint_ids(allocation) or f"`--cpus {len(ids)}` to run on the CPU",
            )
        picked.append(match)
    return tuple(picked)


def _hint_ids(allocation: Allocation) -> str:
    words = ",".join(v.entry for v in allocation.gpus)
    return f"`--gpu-ids {words}`" if words else ""


def _too_few(asked: int | Literal["all"], allocation: Allocation) -> UsageError:
    found = len(allocation.gpus)
    ranks = DEFAULT_CPU_RANKS if asked == "all" else asked
    on_cpu = f"`--cpus {ranks}` to run {ranks} rank{_s(ranks)} on the CPU"
    what = "all GPUs were" if asked == "all" else _count_gpus(asked)
    return UsageError(
        f"{what} asked for, {_describe_found(allocation)}",
        hint=f"`--gpus {found}`, or {on_cpu}" if found else on_cpu,
    )


def _count_gpus(count: int) -> str:
    return f"{count} GPU{_s(count)} {'was' if count == 1 else 'were'}"


def _describe_found(allocation: Allocation) -> str:
    """Say how many GPUs there are: `2 are visible (…)`, `none was found on this machine (…)`."""
    found, variable = len(allocation.gpus), allocation.visible_variable
    number = str(found) if found else "none"
    if variable is not None and allocation.inventory.gpus:
        machine = len(allocation.inventory.gpus)
        more = f" of {machine}" if machine != found else ""
        verb = "are" if found > 1 else "is"
        return f"{number}{more} {verb} visible (CUDA_VISIBLE_DEVICES={variable})"
    problem = allocation.inventory.problem
    why = f" ({problem})" if problem and not found else ""
    return f"{number} {'were' if found > 1 else 'was'} found on this machine{why}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
