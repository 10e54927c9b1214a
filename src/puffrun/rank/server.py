"""Lets the launcher ask a rank what it does, without a change to user code and without its help.

Once `torch.distributed` is imported, torch's own `_WorkerServer` is started on a unix socket in
the run directory: a C++ thread that is asleep until somebody connects. It tells the flight
recorder's entries (needs no GIL) and the Python stacks (needs the GIL). A program that does not
import torch gets no thread at all, and is looked at from outside only.

ranks/rank-N.jsonl says whether the server runs, and names the members of each process group,
because the flight recorder knows groups only by a name that is each process's own.

Private parts of torch are used, so each may be absent: then the journal says which.
Imported by file path at start-up: standard library only, and the expensive parts when needed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # mypy takes it for typing's, whose import costs more than all of this
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

WAITED_FOR = "torch.distributed.distributed_c10d"
MIN_THREADS = 8  # of the HTTP server in torch
GREETING = b"WorkerServer.cpp"  # what torch prints when the server starts; nobody asked for it


class Journal:
    """A rank's lines for the launcher; a full disk costs the line, not the run."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, **fields: Any) -> None:
        """Append one line."""
        import json

        try:
            with open(self._path, "a", encoding="utf-8") as file:  # noqa: PTH123  # pathlib is slow to import
                file.write(json.dumps(fields) + "\n")
        except OSError:
            return


class AfterImport:
    """Calls `act` once, right after one module has been imported; a finder on sys.meta_path."""

    def __init__(self, name: str, act: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find nothing but the one module, and that only once."""
        if name != self._name:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = self._find_elsewhere(name, path, target)
        if spec is not None and spec.loader is not None:
            self._hook(spec.loader)
        return spec

    @staticmethod
    def _find_elsewhere(
        name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        specs = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
        return next((spec for spec in specs if spec is not None), None)

    def _hook(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader is as it was, whatever happens next
            load(module)
            self._act(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader of somebody else's, with slots
            return


def install(run_dir: str, rank: int) -> None:
    """Start the server once torch.distributed is imported, in this process, not in a fork of it."""
    pid = os.getpid()
    journal = Journal(f"{run_dir}/ranks/rank-{rank}.jsonl")

    def act(c10d: ModuleType) -> None:
        if os.getpid() != pid:
            return
        try:
            _watch_groups(c10d, journal)
            _start(f"{run_dir}/ranks", f"rank-{rank}.sock")
        except Exception as error:  # noqa: BLE001  # torch's private parts; never in the program's way
            journal.write(server=False, reason=f"{type(error).__name__}: {error}"[:500])
        else:
            journal.write(server=True, pid=pid)

    imported = sys.modules.get(WAITED_FOR)
    if imported is not None:  # a rank that was forked from a process that had imported torch
        act(imported)
    else:
        sys.meta_path.insert(0, AfterImport(WAITED_FOR, act))


def _start(directory: str, name: str) -> None:
    """Start torch's server on a socket; the path through /proc keeps within 107 bytes."""
    import atexit
    import ctypes

    from torch._C import _distributed_c10d

    make_server = getattr(_distributed_c10d, "_WorkerServer", None)
    if make_server is None:
        raise RuntimeError("this torch has no `_WorkerServer`")
    directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _unlink(name, directory_fd)  # of the attempt before this one
        path = f"/proc/self/fd/{directory_fd}/{name}"
        server = _with_few_threads(lambda: _without_greeting(lambda: make_server(path)))
    finally:
        os.close(directory_fd)
    # its destructor ends the process (a joinable std::thread), at exit and in forks: it never runs
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    atexit.register(_stop_answering, os.getpid(), f"{directory}/{name}")


def _with_few_threads(start: Callable[[], Any]) -> Any:
    """Call `start` on one CPU: the server makes a thread a CPU that it may use, but at least 8."""
    cpus = os.sched_getaffinity(0)
    if len(cpus) <= MIN_THREADS:
        return start()
    os.sched_setaffinity(0, {min(cpus)})
    try:
        return start()
    finally:
        os.sched_setaffinity(0, cpus)


def _stop_answering(pid: int, path: str) -> None:
    """Take the socket away before Python is torn down: the server must not ask for the GIL then."""
    if os.getpid() == pid:
        _unlink(path)


def _unlink(path: str, directory_fd: int | None = None) -> None:
    try:
        os.unlink(path, dir_fd=directory_fd)
    except OSError:
        return


def _without_greeting(start: Callable[[], Any]) -> Any:
    """Call `start` while stderr goes to memory; what else was written there is written after."""
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed: nobody sees anything
        return start()
    memory = os.memfd_create("stderr")
    try:
        os.dup2(memory, 2)
        return start()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        lines = os.pread(memory, 1 << 20, 0).splitlines(keepends=True)
        os.close(memory)
        rest = b"".join(line for line in lines if GREETING not in line)
        if rest:
            os.write(2, rest)


def _watch_groups(c10d: Any, journal: Journal) -> None:
    """Write down the members of each process group when it is made."""
    import functools

    make_group = getattr(c10d, "_new_process_group_helper", None)
    if make_group is None:
        journal.write(groups=False, reason="this torch makes its groups in another way")
        return

    @functools.wraps(make_group)
    def make_and_note(*args: Any, **kwargs: Any) -> Any:
        made = make_group(*args, **kwargs)
        try:
            size, members = args[0], list(args[2])
            name = getattr(made[0], "group_name", None)
            if name is not None:
                journal.write(group=str(name), ranks=members or list(range(size)))
        except Exception as error:  # noqa: BLE001  # its shape is torch's own affair
            journal.write(groups=False, reason=f"{type(error).__name__}: {error}"[:500])
        return made

    c10d._new_process_group_helper = make_and_note  # noqa: SLF001
