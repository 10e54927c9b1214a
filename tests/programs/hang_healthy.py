"""Healthy programs of the kinds that people write (argv[1]): none of them hangs."""

import multiprocessing
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

RANK = int(os.environ["RANK"])


def square(x: int) -> int:
    return x * x


def ddp() -> None:
    """PyTorch's own tutorial: a small model, a few steps."""
    model = DistributedDataParallel(torch.nn.Linear(10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(20):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
        optimizer.step()


def load(context: str) -> None:
    data = TensorDataset(torch.arange(64.0).reshape(64, 1))
    loader = DataLoader(data, batch_size=8, num_workers=1, multiprocessing_context=context)
    for (batch,) in loader:
        dist.all_reduce(batch)


def spawn_loader() -> None:
    load("spawn")


def fork_loader() -> None:
    load("fork")


def fork_pool() -> None:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(square, range(10))[-1] == 81
    dist.barrier()


def threads() -> None:
    before = threading.active_count()
    done = threading.Thread(target=time.sleep, args=(0.2,))
    done.start()
    done.join()
    assert threading.active_count() == before
    dist.barrier()


def subgroups() -> None:
    pair = dist.new_group([0, 1])
    for _ in range(50):
        dist.all_reduce(torch.ones(4), group=pair)


def quiet_start() -> None:
    """Long work of one rank before the first collective, without a word."""
    if RANK == 0:
        end = time.monotonic() + 6
        while time.monotonic() < end:
            sum(range(1000))
    dist.barrier()


def evaluation() -> None:
    """Rank 0 evaluates and prints now and then, while the others wait."""
    if RANK == 0:
        for step in range(6):
            print(f"evaluated {step}", flush=True)
            time.sleep(0.8)
    dist.barrier()


def reads_files() -> None:
    """Rank 0 reads a dataset that takes its time."""
    if RANK == 0:
        with Path("/dev/zero").open("rb") as file:
            for _ in range(60):
                file.read(1 << 16)
                time.sleep(0.1)
    dist.barrier()


def asynchronous() -> None:
    """Rank 0 computes, most of the time with the GIL, while a collective of it is under way."""
    tensor = torch.ones(4)
    if RANK == 0:
        work = dist.all_reduce(tensor, async_op=True)
        end = time.monotonic() + 6
        while time.monotonic() < end:
            sum(range(50_000_000))
        dist.send(tensor.new_ones(1), dst=1)
        work.wait()
    else:
        dist.recv(tensor.new_ones(1), src=0)
        dist.all_reduce(tensor)


def no_group() -> None:
    """A program that never uses torch.distributed."""
    torch.randn(100, 100).sum()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] != "no_group":
        dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    globals()[sys.argv[1]]()
    if dist.is_initialized():
        dist.destroy_process_group()
    print("done", flush=True)
