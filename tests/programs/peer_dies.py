"""All ranks reduce in a loop, and rank 1 kills itself in the midst of it."""

import os
import signal

import torch
import torch.distributed as dist


def step(number: int) -> None:
    dist.all_reduce(torch.ones(4))
    if number == 200 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for number in range(10_000):
        step(number)
