"""A checksum of a tensor's bytes: exact, and sensitive to the order of the elements."""

import ctypes
import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

CHUNK = 1 << 22  # elements hashed at once on a device, so that little memory is needed


def sum_tensor(tensor: "Tensor") -> str:
    """Checksum a tensor's values; "" where there are none that can be read (meta, sparse, nested).

    A subclass that wraps other tensors (float8, quantised) has no memory of its own: its parts are
    hashed where it tells them (`__tensor_flatten__`), else nothing is.
    """
    import torch

    if tensor.is_meta or tensor.layout != torch.strided or tensor.is_nested:
        return ""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        parts = getattr(tensor, "__tensor_flatten__", None)
        if parts is not None:
            return _sum_parts(tensor, parts()[0])
    return _sum_plain(tensor.detach())


def _sum_parts(tensor: "Tensor", names: "Iterable[str]") -> str:
    import torch

    parts = [(name, getattr(tensor, name)) for name in names]
    sums = [(name, sum_tensor(part)) for name, part in parts if isinstance(part, torch.Tensor)]
    if not all(part for _, part in sums):
        return ""
    return hashlib.blake2b(repr(sums).encode(), digest_size=8).hexdigest()


def _sum_plain(tensor: "Tensor") -> str:
    if tensor.is_conj() or tensor.is_neg():  # lazily: the memory is that of another tensor
        tensor = tensor.resolve_conj().resolve_neg()
    if not _has_memory(tensor):
        return ""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return _sum_bytes(tensor) if tensor.is_cpu else _sum_on_device(tensor)


def _has_memory(tensor: "Tensor") -> bool:
    """Whether all elements lie in memory: wrappers, fake and resharded tensors have none."""
    if tensor.numel() == 0:
        return True
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    end = (tensor.storage_offset() + last + 1) * tensor.element_size()
    try:
        return tensor.data_ptr() != 0 and end <= tensor.untyped_storage().nbytes()
    except (RuntimeError, TypeError, ValueError):  # it has no storage that can be asked
        return False


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
