"""Muon over sharded parameters: it gathers the whole gradient of each, in registration order."""

import torch
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard
from torch.optim import Optimizer

from puffrun import guard


class ShardedMuon(Optimizer):
    """Each rank holds a part of every parameter, and updates its part of the whole update."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                whole = p.grad.full_tensor()  # a collective: it pairs by order alone
                update = DTensor.from_local(orthogonalize(whole), p.device_mesh, [Replicate()])
                part = update.redistribute(placements=p.placements)
                p.to_local().sub_(part.to_local(), alpha=group["lr"])


def orthogonalize(matrix, steps=5):
    """Bring all singular values near 1, by Newton-Schulz iterations."""
    x = matrix / matrix.norm()
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def train(rank, *, swapped, guarded):
    """Make one step on two ranks; with `swapped`, rank 1 registers `b` before `a`."""
    mesh = DeviceMesh("cpu", [0, 1])
    parameters = {}
    for name, seed in (("a", 1), ("b", 2)):
        torch.manual_seed(seed)
        whole, gradient = torch.randn(2, 4, 4)
        rows = slice(2 * rank, 2 * rank + 2)
        parameters[name] = torch.nn.Parameter(DTensor.from_local(whole[rows], mesh, [Shard(0)]))
        parameters[name].grad = DTensor.from_local(gradient[rows], mesh, [Shard(0)])
    order = reversed(parameters.items()) if swapped and rank == 1 else parameters.items()
    optimizer = ShardedMuon(list(order))
    if guarded:
        guard(optimizer)
    optimizer.step()
    return {name: p.to_local().tolist() for name, p in parameters.items()}
