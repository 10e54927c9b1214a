"""Unmodified programs that hang, one a case (argv[1]); four ranks on gloo, and what they print."""

import ctypes
import os
import queue
import subprocess
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])


def reduce() -> None:
    dist.all_reduce(torch.ones(4))


def skip_barrier() -> None:
    if RANK != 1:
        dist.barrier()
    reduce()


def barrier_of_rank_0() -> None:
    if RANK == 0:
        dist.barrier()
    reduce()


def barrier_too_many() -> None:
    dist.barrier()
    if RANK == 2:
        dist.barrier()
    threading.Event().wait(3600)


def broadcast_against_all_reduce() -> None:
    if RANK == 3:
        dist.broadcast(torch.ones(4), src=3)
        dist.barrier()
    else:
        reduce()


def other_shape() -> None:
    if RANK == 1:
        dist.all_reduce(torch.ones(8))
    else:
        reduce()
    dist.barrier()


def c_sleep_with_gil() -> None:
    if RANK == 1:
        save_in_c()
    reduce()


def save_in_c() -> None:
    ctypes.PyDLL(None).sleep(3600)


def python_loop() -> None:
    while RANK == 1:
        time.sleep(0.05)
    reduce()


def busy_loop() -> None:
    while RANK == 1:
        pass
    reduce()


def lock() -> None:
    if RANK == 1:
        held = threading.Lock()
        held.acquire()
        held.acquire()
    reduce()


def queue_get() -> None:
    if RANK == 1:
        queue.Queue().get()
    reduce()


def child_process() -> None:
    if RANK == 1:
        subprocess.run(["sleep", "3600"], check=False)
    reduce()


def stopped() -> None:
    """The test sends SIGSTOP to rank 1 while it loops here."""
    if RANK == 1:
        while True:
            time.sleep(0.01)
    reduce()


def sub_group() -> None:
    pair = dist.new_group([0, 1])
    if RANK == 0:
        dist.barrier(group=pair)
    if RANK == 1:
        time.sleep(3600)
    reduce()


def unused_parameter() -> None:
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)])
    model = DistributedDataParallel(Net(layers))
    model(torch.ones(2, 4)).sum().backward()
    dist.barrier()


class Net(torch.nn.Module):
    def __init__(self, layers: torch.nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x)
        return x if RANK == 1 else self.layers[1](x)


def returned_early() -> None:
    if RANK != 1:
        reduce()


def before_init() -> None:
    """The hang was before the first collective."""


def other_call_site() -> None:
    if RANK == 1:
        dist.barrier()
    else:
        dist.barrier()
    if RANK == 1:
        time.sleep(3600)
    reduce()


def asynchronous() -> None:
    work = dist.all_reduce(torch.ones(4), async_op=True)
    if RANK == 1:
        time.sleep(3600)
    work.wait()
    reduce()


if __name__ == "__main__":
    case = sys.argv[1]
    torch.set_num_threads(1)
    print("ready", flush=True)
    if case == "before_init" and RANK == 1:
        time.sleep(3600)
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    for _ in range(3):
        reduce()
    print("steps", flush=True)
    globals()[case]()
    dist.destroy_process_group()
