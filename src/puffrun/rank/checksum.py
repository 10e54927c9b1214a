"""A checksum of a tensor's bytes: exact, and sensitive to the order of the elements."""

import ctypes
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 1 << 22  # elements hashed at once on a device, so that little memory is needed


def sum_tensor(tensor: "Tensor") -> str:
    """Checksum a plain tensor's values; "" where it has none that can be read (meta, sparse)."""
    import torch

    if tensor.is_meta or tensor.layout != torch.strided:
        return ""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return _sum_bytes(tensor) if tensor.is_cpu else _sum_on_device(tensor.detach())


def _sum_bytes(tensor: "Tensor") -> str:
    """Hash the memory itself: one pass, no copy."""
    size = tensor.nbytes
    if size == 0:
        return "empty"
    memory = (ctypes.c_char * size).from_address(tensor.data_ptr())
    return hashlib.blake2b(memory, digest_size=8).hexdigest()


def _sum_on_device(tensor: "Tensor") -> str:
    """Add up byte times position, modulo 2**64, where the tensor is; one number comes back."""
    import torch

    data = tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.view(-1)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, data.numel(), CHUNK):
        part = data[start : start + CHUNK].to(torch.int64)
        weights = torch.arange(start, start + len(part), device=tensor.device) * 0x9E3779B97F4A7C
        total += ((part + 1) * (weights ^ (weights >> 29))).sum()
    return f"{int(total) & (2**64 - 1):016x}"
