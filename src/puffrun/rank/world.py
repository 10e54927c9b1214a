"""Which rank this is, of how many, and where the ranks meet, read from the environment."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass


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


def detect_world(environ: Mapping[str, str]) -> World:
    """Read torchrun's variables; else ask an initialised process group; else be alone."""
    if "MASTER_ADDR" in environ and "RANK" in environ and "WORLD_SIZE" in environ:
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


def _detect_group() -> World:
    dist = sys.modules.get("torch.distributed")  # not imported: then nothing is initialised
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return SINGLE
    rank = dist.get_rank()
    return World(rank=rank, size=dist.get_world_size(), local_rank=rank)
