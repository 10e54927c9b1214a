"""Many driving worlds in one C library, stepped together; `drive.h` says what they are."""

import ctypes
from pathlib import Path

import torch
from torch import Tensor

# how an episode ended, as in drive.h; 0 is an episode that goes on
ENDINGS = ("goal", "collision", "off-road", "missed")
OBSERVATIONS = 28
ACTIONS = 15  # 5 steering angles x (brake, coast, accelerate)


class DriveEnvs:
    """`count` driving worlds whose scenarios follow from `seed`.

    `observations` is (count, 28) float32, roughly within -1 and 1. `step` takes (count,) int64
    actions, overwrites `observations`, and returns rewards (count,) float32 and endings (count,)
    int64. A world that ended has already begun its next episode. The tensors are reused: copy what
    you keep.
    """

    def __init__(self, library_path: Path, count: int, seed: int) -> None:
        self._library = load_library(library_path)
        self.observations = torch.zeros(count, OBSERVATIONS)
        self._rewards = torch.zeros(count)
        self._endings = torch.zeros(count, dtype=torch.int64)
        self._envs = self._library.drive_envs_make(
            count, seed % 2**64, self.observations.data_ptr()
        )
        if not self._envs:
            raise MemoryError(f"no memory for {count} driving worlds")

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Take one decision in every world."""
        actions = actions.to("cpu", torch.int64).contiguous()
        if actions.shape != self._endings.shape:
            raise ValueError(f"expected {self._endings.numel()} actions, got {actions.numel()}")
        if not ((actions >= 0) & (actions < ACTIONS)).all():
            raise ValueError(f"an action is not within 0 and {ACTIONS - 1}")
        self._library.drive_envs_step(
            self._envs,
            actions.data_ptr(),
            self.observations.data_ptr(),
            self._rewards.data_ptr(),
            self._endings.data_ptr(),
        )
        return self._rewards, self._endings

    def close(self) -> None:
        """Free the worlds."""
        self._library.drive_envs_close(self._envs)
        self._envs = None


def load_library(path: Path) -> ctypes.CDLL:
    """Load libdrive.so and declare its functions, so that 64-bit pointers stay whole."""
    library = ctypes.CDLL(str(path))
    sizes = (library.drive_envs_observations(), library.drive_envs_actions())
    if sizes != (OBSERVATIONS, ACTIONS):
        raise ValueError(f"{path} has (observations, actions) {sizes}, not {OBSERVATIONS, ACTIONS}")
    pointer = ctypes.c_void_p
    library.drive_envs_make.restype = pointer
    library.drive_envs_make.argtypes = [ctypes.c_int, ctypes.c_uint64, pointer]
    library.drive_envs_step.restype = None
    library.drive_envs_step.argtypes = [pointer] * 5
    library.drive_envs_close.restype = None
    library.drive_envs_close.argtypes = [pointer]
    return library
