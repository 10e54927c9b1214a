"""Fit a line on all ranks: the smallest training script that is worth launching."""

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the group exists: DDP's late import would keep it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
args = parser.parse_args()

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)  # every rank sees data of its own
model = DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(args.steps):
    x = torch.rand(64, 1)
    loss = (model(x) - (3 * x - 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if rank == 0 and step % 50 == 0:
        print(f"step {step}  loss {loss:.4f}", flush=True)
if rank == 0:
    slope, start = (p.item() for p in model.parameters())
    print(f"{os.environ.get('GREETING', 'done')}: y = {slope:.2f} x + {start:.2f}")
del model  # the last that holds the group: its threads end here, not in Python's shutdown
dist.destroy_process_group()
