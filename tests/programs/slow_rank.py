"""Four ranks in step; rank 2 takes 20 times as long as the others, and says nothing for long."""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    for _ in range(int(sys.argv[1])):
        compute(0.2 if RANK == 2 else 0.01)
        dist.barrier()
    dist.destroy_process_group()
