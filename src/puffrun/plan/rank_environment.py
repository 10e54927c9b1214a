"""The environment of the agent and its ranks: what is passed, set and dropped. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from puffrun.errors import UsageError
from puffrun.plan.devices import Devices
from puffrun.rundir import ENV_ARTIFACT_PREFIX, ENV_RUN_DIR, ENV_RUN_ID

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
OMP_VARIABLE = "OMP_NUM_THREADS"
_OMP_KIN = ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

# what torchrun gives its ranks, and what it reads itself: set by an outer launcher if at all
_LAUNCHER_NAMES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCH_WORKER_SERVER_SOCKET",
    }
)
_LAUNCHER_PREFIXES = ("PET_", "TORCHELASTIC_", "TORCHRUN", "ROLE_")
_OUTER_RUN_NAMES = frozenset({ENV_RUN_DIR, ENV_RUN_ID})


@dataclass(frozen=True)
class Environment:
    """`env` is complete; `changes` are (name, value, why); `ignored` are (name, value)."""

    env: tuple[tuple[str, str], ...]
    changes: tuple[tuple[str, str, str], ...]
    ignored: tuple[tuple[str, str], ...]


def is_launcher_variable(name: str) -> bool:
    """Tell whether a variable belongs to a launcher, so that an outer one's must not leak in."""
    return name in _LAUNCHER_NAMES or name.startswith(_LAUNCHER_PREFIXES)


def _is_outer_run(name: str) -> bool:
    return name in _OUTER_RUN_NAMES or name.startswith(ENV_ARTIFACT_PREFIX)


def make_environment(
    environ: Mapping[str, str],
    configured: tuple[tuple[str, str], ...],
    source: str,
    devices: Devices,
    cores: int,
) -> Environment:
    """Make the ranks' environment out of ours; `source` is where `configured` was written.

    Raises:
        UsageError: the config sets a variable that puffrun decides.
    """
    _refuse_reserved(configured, source)
    kept = {
        n: v for n, v in environ.items() if not is_launcher_variable(n) and not _is_outer_run(n)
    }
    changes = [(name, value, source) for name, value in configured]
    known = kept | dict(configured)
    changes += _set_devices(known, devices)
    changes += _set_threads(known, devices.ranks, cores)
    env = kept | {name: value for name, value, _ in changes}
    return Environment(
        env=tuple(env.items()),
        changes=tuple(changes),
        ignored=tuple((n, v) for n, v in sorted(environ.items()) if is_launcher_variable(n)),
    )


def _refuse_reserved(configured: tuple[tuple[str, str], ...], source: str) -> None:
    for name, _ in configured:
        if name == VISIBLE_VARIABLE:
            raise UsageError(
                f"{source}: {name} in [train.env] would be overruled by the choice of devices",
                hint='`gpu-ids = "0,2"` or `cpus = 2` in [launch]',
            )
        if is_launcher_variable(name) or _is_outer_run(name):
            raise UsageError(f"{source}: {name} in [train.env] is decided by puffrun")


def _set_devices(env: Mapping[str, str], devices: Devices) -> list[tuple[str, str, str]]:
    value = ",".join(devices.entries)
    if env.get(VISIBLE_VARIABLE) == value:
        return []
    return [(VISIBLE_VARIABLE, value, "one GPU per rank" if value else "no GPU on a CPU run")]


def _set_threads(env: Mapping[str, str], ranks: int, cores: int) -> list[tuple[str, str, str]]:
    """Share the cores out. Where OMP_NUM_THREADS is chosen already, its kin follow it.

    MKL_NUM_THREADS beats OMP_NUM_THREADS in torch, so another value there would undo the choice.
    """
    chosen = env.get(OMP_VARIABLE)
    if chosen is None:
        value, why = (
            str(max(1, cores // ranks)),
            f"{_count(cores, 'core')} / {_count(ranks, 'rank')}",
        )
        names: tuple[str, ...] = (OMP_VARIABLE, *_OMP_KIN)
    elif chosen.isdecimal():
        value, why, names = chosen, f"as {OMP_VARIABLE}", _OMP_KIN
    else:
        return []
    return [(name, value, why) for name in names if name not in env]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
