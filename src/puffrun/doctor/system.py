"""Checks of the machine: limits, shared memory, names, variables, processes, disks, locks. Pure."""

from puffrun.doctor.finding import Finding
from puffrun.doctor.machine_facts import Facts, Network, Space

MIB, GIB = 1 << 20, 1 << 30
SHM_FREE = 128 * MIB
OPEN_FILES = 512
HEADROOM = 256  # processes and threads that a small run needs
DISK_FREE = GIB
INODES_FREE = 10_000
SLOW_NAME_S = 2.0
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def render_bytes(count: int) -> str:
    """Say a size: `64 MiB`, `1.5 GiB`."""
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count // MIB} MiB" if count >= MIB else f"{count // 1024} KiB"


def describe_shm(facts: Facts) -> str:
    """Say how much of it is free."""
    return f"{render_bytes(facts.shm.free)} of {render_bytes(facts.shm.total)} free"


def check_shm(facts: Facts) -> list[Finding]:
    """Ask whether data loaders and NCCL get their shared memory."""
    shm = facts.shm
    why = "data loaders and NCCL pass data through it; ranks die of SIGBUS when it is full"
    if shm.problem:
        return [Finding(f"{shm.path}: {shm.problem}", why, f"ls -ld {shm.path}")]
    if shm.free >= SHM_FREE:
        return []
    big = ", ".join(f"{name} {render_bytes(size)}" for name, size in shm.biggest)
    found = f"{shm.path} has {render_bytes(shm.free)} of {render_bytes(shm.total)} free"
    if big:
        fix = f"ls -lS {shm.path}"
    else:
        grow = f"sudo mount -o remount,size=8G {shm.path}"
        fix = "docker run --shm-size=8g" if facts.in_container else grow
    return [Finding(found + (f"; the biggest: {big}" if big else ""), why, fix)]


def describe_files(facts: Facts) -> str:
    """Say the limit."""
    return f"up to {facts.limits.open_files or 'any number'}"


def check_files(facts: Facts) -> list[Finding]:
    """Ask whether a process may open enough files."""
    limits = facts.limits
    if limits.open_files is None or limits.open_files >= OPEN_FILES:
        return []
    hard = limits.open_files_hard
    fits = hard is None or hard >= 4096  # noqa: PLR2004 - what the hint says
    raised = "sudo prlimit --pid $$ --nofile=65536:65536"
    fix = "docker run --ulimit nofile=65536" if facts.in_container else raised
    return [
        Finding(
            f"a process may open {limits.open_files} files (ulimit -n)",
            "pipes, sockets and data loaders of a few ranks need more: `Too many open files`",
            "ulimit -n 4096" if fits else fix,
        )
    ]


def describe_processes(facts: Facts) -> str:
    """Say how many more processes fit."""
    room = _find_room(facts)
    return "no limit" if room is None else f"room for {room[0]} more"


def check_processes(facts: Facts) -> list[Finding]:
    """Ask whether ranks with their threads and workers may be started."""
    room = _find_room(facts)
    if room is None or room[0] >= HEADROOM:
        return []
    return [
        Finding(
            f"{max(room[0], 0)} more processes and threads fit ({room[1]})",
            "ranks fail with `Resource temporarily unavailable` while they start threads",
            room[2],
        )
    ]


def _find_room(facts: Facts) -> tuple[int, str, str] | None:
    limits, rooms = facts.limits, []
    if limits.processes is not None:
        name = f"ulimit -u {limits.processes}, {limits.processes_used} in use"
        rooms.append((limits.processes - limits.processes_used, name, "ulimit -u 65536"))
    if limits.pids is not None:
        name = f"the cgroup's pids.max is {limits.pids}, {limits.pids_used} in use"
        raised = "sudo systemctl set-property user-$(id -u).slice TasksMax=infinity"
        fix = "docker run --pids-limit=-1" if facts.in_container else raised
        rooms.append((limits.pids - limits.pids_used, name, fix))
    return min(rooms) if rooms else None


def describe_network(facts: Facts) -> str:
    """Say what the host name resolves to."""
    network = facts.network
    return f"`{network.hostname}` is {', '.join(network.addresses)}, loopback works"


def check_network(facts: Facts) -> list[Finding]:
    """Ask whether the node finds itself by its name, and reaches itself."""
    return [*_check_name(facts.network), *_check_loopback(facts.network)]


def _check_name(network: Network) -> list[Finding]:
    name = network.hostname
    fix = f"echo '127.0.1.1 {name}' | sudo tee -a /etc/hosts"
    why = "gloo and NCCL look their own host name up when they start"
    if network.error:
        return [Finding(f"host name `{name}` does not resolve: {network.error}", why, fix)]
    found = []
    if network.took_s > SLOW_NAME_S:
        found.append(Finding(f"resolving `{name}` took {network.took_s:.1f} s", why, fix))
    if network.foreign and len(network.foreign) == len(network.addresses):
        foreign = ", ".join(network.foreign)
        found.append(
            Finding(f"`{name}` is {foreign}, which is no address of this machine", why, fix)
        )
    return found


def _check_loopback(network: Network) -> list[Finding]:
    if not network.loopback_error:
        return []
    return [
        Finding(
            f"127.0.0.1 does not answer: {network.loopback_error}",
            "the ranks of one node meet there",
            "sudo ip link set lo up",
        )
    ]


def check_variables(facts: Facts) -> list[Finding]:
    """Name what another launcher left, and what steers the collectives."""
    found = []
    if facts.launcher_variables:
        names = " ".join(name for name, _ in facts.launcher_variables)
        shown = " ".join(f"{name}={value}" for name, value in facts.launcher_variables)
        found.append(
            Finding(
                f"left over from another launcher: {shown}",
                _explain_leftovers([name for name, _ in facts.launcher_variables]),
                f"unset {names}",
            )
        )
    for name, value in facts.collective_variables:
        found += _check_collective(name, value, facts.network)
    return found


def _explain_leftovers(names: list[str]) -> str:
    reasons = []
    if any(name.startswith("PET_") for name in names):
        reasons.append("torchrun takes PET_* as its own options")
    if not all(name.startswith("PET_") for name in names):
        reasons.append("a program that reads them believes that it is a rank of another run")
    return f"{', and '.join(reasons)}; puffrun drops {'all of them' if names[1:] else 'it'}"


def _check_collective(name: str, value: str, network: Network) -> list[Finding]:
    if name not in _INTERFACES:
        why = "it changes how ranks talk to each other, and is easily forgotten"
        return [Finding(f"{name}={value} is set", why, f"unset {name}", "note")]
    exact = value.startswith("=")
    wanted = [word for word in value.lstrip("=").split(",") if word and not value.startswith("^")]
    known = [
        word
        for word in wanted
        if any(i == word or (not exact and i.startswith(word)) for i in network.interfaces)
    ]
    if not wanted or known:
        return []
    return [
        Finding(
            f"{name}={value}, and this machine has {', '.join(network.interfaces)}",
            "the ranks find no interface to talk over",
            f"unset {name}",
        )
    ]


def check_orphans(facts: Facts) -> list[Finding]:
    """Name the ranks that somebody's launcher left behind."""
    return [
        Finding(
            f"pid {orphan.pid} is rank {orphan.rank}{_name_run(orphan.run_id)} without a launcher "
            f"(adopted by {orphan.parent}): {orphan.command}",
            "it holds its GPU, its port and its memory until somebody ends it",
            f"kill {orphan.pid}",
        )
        for orphan in facts.orphans
    ]


def _name_run(run_id: str) -> str:
    """Name the run, if it has a name: torchrun calls those that got none `none`."""
    return f" of run {run_id}" if run_id not in ("", "none") else ""


def describe_spaces(facts: Facts) -> str:
    """Say how much is free where."""
    return ", ".join(f"{render_bytes(s.free)} free for {s.role}" for s in facts.spaces) or "unknown"


def check_spaces(facts: Facts) -> list[Finding]:
    """Ask whether runs, artifacts and temporary files can be written."""
    return [finding for space in facts.spaces for finding in _check_space(space)]


def _check_space(space: Space) -> list[Finding]:
    why = f"{space.role} are written there"
    if space.problem:
        fix = (
            f"sudo chown -R $(id -u) {space.path}"
            if "writ" in space.problem
            else f"ls -ld {space.path}"
        )
        return [Finding(f"{space.path} cannot be used: {space.problem}", why, fix)]
    if space.free < DISK_FREE:
        free = f"{render_bytes(space.free)} of {render_bytes(space.total)} free"
        return [Finding(f"{space.path} has {free}", why, f"du -xh --max-depth=1 {space.path}")]
    if space.inodes_free is not None and space.inodes_free < INODES_FREE:
        left = f"{space.path} has {space.inodes_free} inodes left"
        return [Finding(left, why, f"df -i {space.path}")]
    return []


def describe_locks(facts: Facts) -> str:
    """Say whether locks were tried."""
    tried = facts.locks.excludes is not None
    return "a lock keeps others out" if tried else "not tried: nothing can be written"


def check_locks(facts: Facts) -> list[Finding]:
    """Ask whether flock keeps a second process out where artifacts are built."""
    locks = facts.locks
    if locks.excludes is not False:
        return []
    reason = locks.problem or "two processes held it at once"
    return [
        Finding(
            f"file locks in {locks.path} keep nobody out: {reason}",
            "several builders may work at once: in-place builds spoil each other",
            "mount -o remount,local_lock=none, or keep the project on another file system",
        )
    ]


def describe_tracing(facts: Facts) -> str:
    """Name py-spy."""
    return f"py-spy at {facts.tracing.py_spy}" if facts.tracing.py_spy else "no py-spy"


def check_tracing(facts: Facts) -> list[Finding]:
    """Ask whether the stack of a rank that holds the GIL can be seen. Nothing fails without."""
    tracing = facts.tracing
    why = "the verdict on a hang cannot show where a rank is that holds the GIL or is stopped"
    if tracing.py_spy is None:
        return [Finding("py-spy is not installed", why, "pip install py-spy", "note")]
    if tracing.may_ptrace:
        return []
    scope = f" (kernel.yama.ptrace_scope={tracing.ptrace_scope})" if tracing.ptrace_scope else ""
    allow = "sudo sysctl kernel.yama.ptrace_scope=0"
    fix = "docker run --cap-add=SYS_PTRACE" if facts.in_container else allow
    return [Finding(f"py-spy may not look into other processes{scope}", why, fix, "note")]
