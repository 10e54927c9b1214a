"""The GPUs of this machine, asked of NVML through ctypes (nvml.h of the NVIDIA driver)."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE
_SUCCESS = 0
_MIG_ENABLED = 1


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG instance of one (`parent` is then the GPU's UUID).

    `index` is NVML's, which is that of nvidia-smi; a MIG instance has its GPU's.
    """

    index: int
    uuid: str
    name: str
    parent: str | None = None


class NvmlError(Exception):
    """NVML is not there or does not answer; the text says which."""


def load_nvml_gpus() -> tuple[Gpu, ...]:
    """Return every GPU that the driver shows, MIG instances in place of GPUs in MIG mode.

    Raises:
        NvmlError: there is no NVML or no driver, or a call failed.
    """
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        raise NvmlError(f"no {_LIBRARY}") from None
    with _session(library) as nvml:
        gpus: list[Gpu] = []
        for index in range(nvml.count()):
            gpus.extend(nvml.gpus_at(index))
        return tuple(gpus)


@contextmanager
def _session(library: ctypes.CDLL) -> Iterator["_Nvml"]:
    nvml = _Nvml(library)
    nvml.call("nvmlInit_v2")
    try:
        yield nvml
    finally:
        library.nvmlShutdown()


class _Nvml:
    """The few NVML calls that are needed, with their results as return values."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvmlErrorString.restype = ctypes.c_char_p

    def call(self, name: str, *args: object) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(f"this NVML has no {name}") from None
        code = function(*args)
        if code != _SUCCESS:
            text = self._library.nvmlErrorString(code) or b"unknown error"
            raise NvmlError(f"{name}: {text.decode(errors='replace')}")

    def count(self) -> int:
        number = ctypes.c_uint()
        self.call("nvmlDeviceGetCount_v2", ctypes.byref(number))
        return number.value

    def gpus_at(self, index: int) -> list[Gpu]:
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        gpu = Gpu(index, self._text("nvmlDeviceGetUUID", handle), self._name(handle))
        instances = self._mig_handles(handle)
        if instances is None:
            return [gpu]
        return [
            Gpu(index, self._text("nvmlDeviceGetUUID", h), self._name(h), gpu.uuid)
            for h in instances
        ]

    def _name(self, handle: ctypes.c_void_p) -> str:
        return self._text("nvmlDeviceGetName", handle)

    def _text(self, function: str, handle: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(function, handle, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def _mig_handles(self, handle: ctypes.c_void_p) -> list[ctypes.c_void_p] | None:
        """Return the handles of a GPU's MIG instances; None when it is not in MIG mode."""
        mode, pending, most = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
        try:
            self.call("nvmlDeviceGetMigMode", handle, ctypes.byref(mode), ctypes.byref(pending))
            if mode.value != _MIG_ENABLED:
                return None
            self.call("nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(most))
        except NvmlError:
            return None  # not supported by this GPU or by this driver
        return [h for i in range(most.value) if (h := self._mig_handle(handle, i)) is not None]

    def _mig_handle(self, handle: ctypes.c_void_p, slot: int) -> ctypes.c_void_p | None:
        instance = ctypes.c_void_p()
        try:
            self.call(
                "nvmlDeviceGetMigDeviceHandleByIndex",
                handle,
                ctypes.c_uint(slot),
                ctypes.byref(instance),
            )
        except NvmlError:
            return None  # an empty slot
        return instance
