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
        self.first = make_layer(observations, hidden, gain=1.4)
        self.second = make_layer(hidden, hidden, gain=1.4)
        self.actor = make_layer(hidden, actions, gain=0.01)  # begin with all actions alike
        self.critic = make_layer(hidden, 1, gain=1.0)

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Map (batch, observations) to logits (batch, actions) and values (batch,)."""
        features = self.second(self.first(observations).tanh()).tanh()
        return self.actor(features), self.critic(features).squeeze(-1)


def make_layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Make a layer with orthogonal weights, which PPO likes."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def export_policy(policy: Policy, path: Path) -> None:
    """Write the actor for visualize.c, little-endian.

    8 bytes `DRIVEMLP`, uint32 number of layers; then for each layer uint32 outputs, uint32 inputs,
    outputs x inputs float32 weights (one output's after the other), outputs float32 biases.
    Tanh stands between two layers, nothing after the last.
    """
    layers = [policy.first, policy.second, policy.actor]
    with path.open("wb") as file:
        file.write(MAGIC + struct.pack("<I", len(layers)))
        for layer in layers:
            file.write(struct.pack("<II", layer.out_features, layer.in_features))
            file.write(to_bytes(layer.weight))
            file.write(to_bytes(layer.bias))


def to_bytes(tensor: Tensor) -> bytes:
    """Give a tensor's float32 numbers as bytes, without numpy."""
    return array("f", tensor.detach().flatten().tolist()).tobytes()
