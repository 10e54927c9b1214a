"""Lets a forked rank end without taking down the torch that it has inherited.

exit(3) runs the exit handlers and static destructors of every library that is loaded. In a fork
those of the inherited ones copy 0.1 s worth of pages, only to free memory that ends with the
process. What the program itself has loaded must have its say: so when one of its libraries has an
exit handler or a destructor of its own, nothing is cut. Neither is it where a library was injected
(`LD_PRELOAD`, CUDA's profilers): those write their results at that point.

Python's own end (exit handlers, threads, modules) is not touched: the cut is made when the last
of Python's exit handlers runs, and takes effect when Python is finalized.
"""

import atexit
import os
import struct
from collections.abc import Mapping

INJECTIONS = {"LD_PRELOAD", "CUDA_INJECTION64_PATH"}
# what a library imports to be heard at the end; C++ statics do it by the first
REGISTRARS = {b"__cxa_atexit", b"atexit", b"on_exit", b"__cxa_thread_atexit_impl"}
ELF64 = b"\x7fELF\x02\x01"  # 64 bits, little-endian
PROGRAM_HEADERS = struct.Struct("<Q14xHH")  # e_phoff, e_phentsize, e_phnum, from byte 32 on
SEGMENT = struct.Struct("<I4xQQ8xQ")  # p_type, p_offset, p_vaddr, p_filesz
TAG = struct.Struct("<qQ")
PT_LOAD, PT_DYNAMIC = 1, 2
DT_STRTAB, DT_STRSZ, DT_FINI_ARRAYSZ = 5, 10, 28
DEFAULT_FINI_BYTES = 8  # the compiler's own, which calls what __cxa_atexit was given


def list_libraries() -> frozenset[str]:
    """List the files that this process runs code of."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123  # quick
        fields = (line.rstrip("\n").split(None, 5) for line in file)
        return frozenset(f[5] for f in fields if len(f) > 5 and "x" in f[1] and f[5][0] == "/")  # noqa: PLR2004  # the path


def prepare_cut(env: Mapping[str, str], inherited: frozenset[str]) -> None:
    """Cut the end short, if all that this process has loaded since `inherited` allows it."""
    import ctypes

    libc = ctypes.CDLL(None)
    if env.keys() & INJECTIONS or not hasattr(libc, "on_exit"):  # of glibc: passes the status on
        return
    pid = os.getpid()
    on_exit, end, flush = libc.on_exit, libc._exit, libc.fcloseall  # noqa: SLF001  # C's name

    def cut() -> None:
        if os.getpid() != pid or any(map(ends_by_itself, list_libraries() - inherited)):
            return
        on_exit(end, None)
        on_exit(flush, None)  # the last to be registered is the first to be called

    atexit.register(cut)  # before the program registers any: the first is the last to be called


def ends_by_itself(path: str) -> bool:
    """Whether a library has an exit handler or a destructor of its own; in doubt it has."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123  # quick
            image = file.read()
        tags, names = _read_dynamic(image)
    except (OSError, struct.error, ValueError):
        return True
    return not REGISTRARS.isdisjoint(names) or tags.get(DT_FINI_ARRAYSZ, 0) > DEFAULT_FINI_BYTES


def _read_dynamic(image: bytes) -> tuple[Mapping[int, int], list[bytes]]:
    """Read a library's dynamic section, and its table of names (ELF gABI, chapter 5)."""
    if not image.startswith(ELF64):
        raise ValueError("no library for this machine")
    table, size, count = PROGRAM_HEADERS.unpack_from(image, 32)
    segments = [SEGMENT.unpack_from(image, table + size * number) for number in range(count)]
    tags: dict[int, int] = {}
    for kind, start, _, length in segments:
        if kind == PT_DYNAMIC:
            tags |= TAG.iter_unpack(image[start : start + length - length % TAG.size])
    names = tags.get(DT_STRTAB, 0)
    for kind, start, address, length in segments:
        if kind == PT_LOAD and address <= names < address + length:
            at = start + names - address
            return tags, image[at : at + tags.get(DT_STRSZ, 0)].split(b"\0")
    raise ValueError("no table of names")
