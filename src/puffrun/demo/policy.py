"""The policy: a small network from what a car sees to what it does, and its export to C."""

import struct
from array import array
from pathlib import Path

from torch import Tensor, nn

MAGIC = b"DRIVEMLP"


class Policy(nn.Module):
    """Two hidden layers shared by the actor (logits of the actions) and the critic (value)."""

    def __init__(self, observations: int, actions: int, hidden: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(observations, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.actor = nn.Linear(hidden, actions)
        self.critic = nn.Linear(hidden, 1)
        for module, gain in [(self.body[0], 1.4), (self.body[2], 1.4), (self.actor, 0.01)]:
            nn.init.orthogonal_(module.weight, gain)
            nn.init.zeros_(module.bias)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, observations) to logits (batch, actions) and values (batch,)."""
        features = self.body(observations)
        return self.actor(features), self.critic(features).squeeze(-1)


def export_policy(policy: Policy, path: Path) -> None:
    """Write the actor for visualize.c, little-endian.

    8 bytes `DRIVEMLP`, uint32 number of layers; then for each layer uint32 outputs, uint32 inputs,
    outputs x inputs float32 weights (one output's after the other), outputs float32 biases.
    Tanh stands between two layers, nothing after the last.
    """
    layers = [policy.body[0], policy.body[2], policy.actor]
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<I", len(layers)))
        for layer in layers:
            file.write(struct.pack("<II", *layer.weight.shape))
            file.write(to_bytes(layer.weight))
            file.write(to_bytes(layer.bias))


def to_bytes(tensor: Tensor) -> bytes:
    """Give a tensor's float32 numbers as bytes, without numpy."""
    return array("f", tensor.detach().flatten().tolist()).tobytes()
