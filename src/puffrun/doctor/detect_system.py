"""Detects limits, shared memory, the network, disks, locks and the right to trace."""

import fcntl
import os
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from puffrun.doctor.machine_facts import Limits, Locks, Network, Space, Tracing
from puffrun.process import run_captured

NAME_TIMEOUT_S = 10.0
LOOPBACK_TIMEOUT_S = 5.0
LOCK_TIMEOUT_S = 20.0
SHM = Path("/dev/shm")  # noqa: S108 - what is looked at
_CGROUP_DIR = Path("/sys/fs/cgroup")
_CAP_SYS_PTRACE = 19
_TRY_LOCK = """
import fcntl, sys
with open(sys.argv[1]) as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(3)
"""
_REFUSED = 3


def detect_container(environ: Mapping[str, str], root: Path = Path("/")) -> bool:
    """Tell whether limits are set where a container is started, by what engines leave in it."""
    marks = (".dockerenv", "run/.containerenv", "run/systemd/container")
    is_named = "KUBERNETES_SERVICE_HOST" in environ or bool(environ.get("container"))
    return is_named or any((root / mark).exists() for mark in marks)


def detect_limits() -> Limits:
    """Read the limits of this process, which ranks inherit."""
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    processes, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    is_root = os.geteuid() == 0  # the kernel does not hold root to it
    pids, pids_used = _read_pids_cgroup()
    return Limits(
        open_files=_finite(files),
        open_files_hard=_finite(hard),
        processes=None if is_root else _finite(processes),
        processes_used=0 if is_root else _count_own_threads(),
        pids=pids,
        pids_used=pids_used,
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _count_own_threads() -> int:
    """Count the threads of all processes of this user, as RLIMIT_NPROC does."""
    me = str(os.getuid())
    count = 0
    for path in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in path.read_text().splitlines())
        except (OSError, ValueError):
            continue
        if fields.get("Uid", "").split()[:1] == [me]:
            count += int(fields.get("Threads", "1"))
    return count


def _read_pids_cgroup() -> tuple[int | None, int]:
    """Read the tightest pids limit of this process's cgroups, v2 and v1."""
    rooms = []
    for directory in _list_pids_cgroups():
        limit, used = _read(directory / "pids.max"), _read(directory / "pids.current")
        if limit.isdecimal() and used.isdecimal():
            rooms.append((int(limit) - int(used), int(limit), int(used)))
    return min(rooms)[1:] if rooms else (None, 0)


def _list_pids_cgroups() -> list[Path]:
    found = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "" or "pids" in controllers.split(","):
            root = _CGROUP_DIR / controllers if controllers else _CGROUP_DIR
            parts = [part for part in group.split("/") if part and part != ".."]
            found += [root.joinpath(*parts[:count]) for count in range(len(parts) + 1)]
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def detect_shm() -> Space:
    """Look at the shared memory, and at its biggest files."""
    space = measure_space("shared memory", SHM)
    sizes = sorted(((_measure_file(path), path.name) for path in SHM.glob("*")), reverse=True)
    biggest = tuple((name, size) for size, name in sizes[:3] if size)
    return Space(space.role, space.path, space.total, space.free, None, space.problem, biggest)


def _measure_file(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512 if path.is_file() else 0
    except OSError:
        return 0


def measure_space(role: str, path: Path) -> Space:
    """Measure the nearest directory that exists, and whether it takes files."""
    there = next(p for p in (path, *path.parents) if os.path.lexists(p))
    try:
        usage = shutil.disk_usage(there)
        inodes = os.statvfs(there)
    except OSError as error:
        return Space(role, str(there), problem=error.strerror or str(error))
    return Space(
        role=role,
        path=str(there),
        total=usage.total,
        free=usage.free,
        inodes_free=inodes.f_favail if inodes.f_files else None,
        problem=_find_write_problem(there),
    )


def _find_write_problem(directory: Path) -> str | None:
    if not directory.is_dir():
        return "it is no directory"
    if os.access(directory, os.W_OK | os.X_OK):
        return None
    read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
    return "the file system is read-only" if read_only else "it is not writable for this user"


def detect_spaces(state_dir: Path, temporary_dir: Path) -> tuple[Space, ...]:
    """Look at everything that a run writes to."""
    places = [("runs", state_dir / "runs"), ("artifacts", state_dir / "artifacts")]
    places.append(("temporary files", temporary_dir))
    found: dict[str, Space] = {}
    for role, path in places:
        space = measure_space(role, path)
        known = found.get(space.path)
        joined = f"{known.role} and {role}" if known else role
        found[space.path] = measure_space(joined, path) if known else space
    return tuple(found.values())


def detect_network() -> Network:
    """Resolve our own name and reach ourselves, each within a deadline."""
    name = socket.gethostname()
    answers: list[tuple[tuple[str, ...], str | None]] = []
    thread = threading.Thread(target=lambda: answers.append(_resolve(name)), daemon=True)
    started_s = time.monotonic()
    thread.start()
    thread.join(NAME_TIMEOUT_S)
    took_s = time.monotonic() - started_s
    addresses, error = answers[0] if answers else ((), f"no answer within {NAME_TIMEOUT_S:g} s")
    return Network(
        hostname=name,
        addresses=addresses,
        foreign=tuple(address for address in addresses if not _is_own(address)),
        error=error,
        took_s=took_s,
        loopback_error=_try_loopback(),
        interfaces=tuple(name for _, name in socket.if_nameindex()),
    )


def _resolve(name: str) -> tuple[tuple[str, ...], str | None]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return (), error.strerror or str(error)
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in found)), None


def _is_own(address: str) -> bool:
    """Only an address of this machine can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _try_loopback() -> str | None:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=LOOPBACK_TIMEOUT_S):
                return None
    except OSError as error:
        return error.strerror or str(error)


def detect_locks(state_dir: Path, python: str) -> Locks:
    """Hold a lock where artifacts are built, and let another process try to take it."""
    wanted = state_dir / "artifacts"
    there = next(p for p in (wanted, *wanted.parents) if os.path.lexists(p))
    try:
        with tempfile.TemporaryDirectory(prefix=".puffrun-doctor-", dir=there) as directory:
            return _try_locks(Path(directory) / "lock", str(there), python)
    except OSError:
        return Locks(str(there), None)


def _try_locks(path: Path, shown: str, python: str) -> Locks:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return Locks(shown, excludes=False, problem=error.strerror)
        argv = [python, "-I", "-S", "-c", _TRY_LOCK, str(path)]
        answer = run_captured(argv, timeout_s=LOCK_TIMEOUT_S)
    if answer.returncode == _REFUSED:
        return Locks(shown)
    if answer.returncode == 0:
        return Locks(shown, excludes=False)
    problem = "the second process waited for it" if answer.returncode is None else None
    return Locks(shown, excludes=False, problem=problem or "the second process failed")


def detect_tracing(environ: Mapping[str, str], python: str) -> Tracing:
    """Find py-spy, beside our Python or on PATH, and what the kernel lets it do."""
    search = f"{Path(python).parent}:{environ.get('PATH', '')}"
    scope = _read(Path("/proc/sys/kernel/yama/ptrace_scope"))
    ptrace_scope = int(scope) if scope.isdecimal() else None
    status = dict(
        line.split(":", 1) for line in _read(Path("/proc/self/status")).splitlines() if ":" in line
    )
    capabilities = int(status.get("CapEff", "0").strip() or "0", 16)
    is_privileged = bool(capabilities >> _CAP_SYS_PTRACE & 1)
    return Tracing(
        py_spy=shutil.which("py-spy", path=search),
        ptrace_scope=ptrace_scope,
        may_ptrace=is_privileged or not ptrace_scope,
    )
