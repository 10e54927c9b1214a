"""The classic race and hang: rank 0 builds, the others wait at torch's barrier."""

import threading
from datetime import timedelta

import torch.distributed as dist


def build() -> None:
    raise OSError("no space left on device")


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    if dist.get_rank() == 0:
        threading.Thread(target=threading.Event().wait).start()  # a data loader, a logger
        build()
    dist.barrier()
