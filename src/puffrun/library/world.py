"""Which rank this is, of how many, and where the ranks meet, read from the environment.

A process that a rank starts or forks inherits all that makes a rank. So the first process that
takes part says so in `PUFFRUN_RANK_TAKEN`, which is inherited too: whoever finds there another
process than itself, for the same rank of the same run, is below that rank, and alone.
"""

import os
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

ENV_TAKEN = "PUFFRUN_RANK_TAKEN"


@dataclass(frozen=True)
class World:
    """This process among its ranks. `namespace` sets one attempt's keys apart in the store.

    `store_address` is (host, port, whether the agent hosts the store there), or None: then the
    default process group's own store is used.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    node: int = 0
    namespace: str = "puffrun"
    store_address: tuple[str, int, bool] | None = None

    @property
    def is_single(self) -> bool:
        """Whether there is nobody to agree with."""
        return self.size == 1


SINGLE = World()


def find_world(environ: MutableMapping[str, str]) -> World:
    """Detect the world, and take this rank's place in it; below a rank, be alone."""
    return detect_world(environ) if take_place(environ) else SINGLE


def take_place(environ: MutableMapping[str, str]) -> bool:
    """Let processes below this one know that it is the rank; False when it is itself below one."""
    if not _names_rank(environ):
        return True
    place = describe_place(environ)
    taken_by, _, taken = environ.get(ENV_TAKEN, "").partition(" ")
    if taken == place and taken_by != str(os.getpid()):
        return False
    environ[ENV_TAKEN] = f"{os.getpid()} {place}"
    return True


def _names_rank(environ: Mapping[str, str]) -> bool:
    return "MASTER_ADDR" in environ and "RANK" in environ and "WORLD_SIZE" in environ


def describe_place(environ: Mapping[str, str]) -> str:
    """Name one rank of one run; a launcher inside a rank gives its own ranks other places."""
    address = f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT')}"
    return f"{environ['RANK']}/{environ['WORLD_SIZE']} {address} {make_namespace(environ)}"


def detect_world(environ: Mapping[str, str]) -> World:
    """Read torchrun's variables; else ask an initialised process group; else be alone."""
    if _names_rank(environ):
        return World(
            rank=int(environ["RANK"]),
            size=int(environ["WORLD_SIZE"]),
            local_rank=int(environ.get("LOCAL_RANK", environ["RANK"])),
            node=int(environ.get("GROUP_RANK", "0")),
            namespace=make_namespace(environ),
            store_address=(
                environ["MASTER_ADDR"],
                int(environ["MASTER_PORT"]),
                environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            ),
        )
    return _detect_group()


def make_namespace(environ: Mapping[str, str]) -> str:
    """Name the keys of one attempt; the agent that speaks for dead ranks makes the same name."""
    run_id = environ.get("TORCHELASTIC_RUN_ID", "none")
    return f"puffrun/{run_id}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


_inherited: list[ref[Any]] = []  # the process group of the process that this one is a fork of


def _note_fork() -> None:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        _inherited[:] = [ref(dist.group.WORLD)]


os.register_at_fork(after_in_child=_note_fork)


def _detect_group() -> World:
    dist = sys.modules.get("torch.distributed")  # not imported: then nothing is initialised
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return SINGLE
    if any(group() is dist.group.WORLD for group in _inherited):
        return SINGLE
    rank = dist.get_rank()
    return World(rank=rank, size=dist.get_world_size(), local_rank=rank)
