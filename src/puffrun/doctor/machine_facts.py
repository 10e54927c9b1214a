"""One frozen snapshot of a machine and a project: all that the checks look at."""

from dataclasses import dataclass, field

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Software:
    """Python and the torch that ranks would import. `torch_error`: why it cannot be imported.

    `cuda` is what torch was built for (None: CPU only), `nccl` the version that it loads,
    `installed_nccl` that of the package beside it, `arches` such as `sm_90`.
    """

    python: str = "3.11.0"
    torch: str | None = "2.13.0"
    torch_wanted: str = ">=2.13,<3"
    torch_error: str | None = None
    cuda: str | None = None
    cuda_error: str | None = None
    nccl: str | None = None
    installed_nccl: str | None = None
    arches: tuple[str, ...] = ()
    gloo: bool = True


@dataclass(frozen=True)
class GpuFact:
    """One GPU as `nvidia-smi` tells: memory in MiB, `capability` such as `9.0`."""

    index: int
    uuid: str
    name: str
    capability: str = ""
    uncorrected_errors: int = 0
    compute_mode: str = "Default"
    recovery: str = "None"


@dataclass(frozen=True)
class Holder:
    """A process that holds a GPU's memory (MiB)."""

    gpu_uuid: str
    pid: int
    name: str
    memory: int


@dataclass(frozen=True)
class Gpus:
    """All GPUs of the machine, and how many CUDA would show. `problem`: why none answer."""

    all: tuple[GpuFact, ...] = ()
    visible: tuple[str, ...] = ()  # UUIDs
    variable: str | None = None
    problem: str | None = None
    device_files: int = 0  # /dev/nvidiaN
    driver: str | None = None
    driver_cuda: str | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Limits of this process; None: no limit, or not known."""

    open_files: int | None = None
    open_files_hard: int | None = None
    processes: int | None = None
    processes_used: int = 0
    pids: int | None = None
    pids_used: int = 0


@dataclass(frozen=True)
class Space:
    """A directory that must take files. `problem` says why it cannot be used; sizes in bytes."""

    role: str
    path: str
    total: int = 1 << 40
    free: int = 1 << 40
    inodes_free: int | None = None
    problem: str | None = None
    biggest: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Network:
    """How this node finds itself. `interfaces` are names such as `lo`, `eth0`."""

    hostname: str = "node"
    addresses: tuple[str, ...] = ("127.0.0.1",)
    foreign: tuple[str, ...] = ()  # addresses of the host name that are not this machine's
    error: str | None = None
    took_s: float = 0.0
    loopback_error: str | None = None
    interfaces: tuple[str, ...] = ("lo",)


@dataclass(frozen=True)
class Orphan:
    """A rank whose launcher is gone; `parent` is what adopted it."""

    pid: int
    rank: str
    run_id: str
    command: str
    parent: str


@dataclass(frozen=True)
class Locks:
    """Whether a second process is refused a lock that this one holds; None: it cannot be tried."""

    path: str = "."
    excludes: bool | None = True
    problem: str | None = None


@dataclass(frozen=True)
class Tracing:
    """What it takes to see the stack of a rank that holds the GIL."""

    py_spy: str | None = "py-spy"
    ptrace_scope: int | None = 0
    may_ptrace: bool = True


@dataclass(frozen=True)
class ArtifactFact:
    """One artifact: why it is stale (nothing: fresh, or never built), what its build lacks."""

    name: str
    fresh: bool = True
    reasons: tuple[str, ...] = ()
    abi_reasons: tuple[str, ...] = ()
    missing_tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForeignExtension:
    """An extension module of another Python; `own` is the suffix that this one looks for."""

    path: str
    own: str


@dataclass(frozen=True)
class Project:
    """What the config asks for, against what there is. `memory` is what is free, in bytes."""

    ranks: int = 2
    workers: int = 0
    cores: int = 2
    threads: int | None = None  # OMP_NUM_THREADS, when set
    memory: int | None = None
    geometry_problem: str | None = None  # what Slurm gave cannot work
    artifacts: tuple[ArtifactFact, ...] = ()
    artifacts_problem: str | None = None
    extensions: tuple[ForeignExtension, ...] = ()
    build_command: str = "puffrun build-artifacts"  # with the config that was asked about


@dataclass(frozen=True)
class Facts:
    """Everything; the defaults are those of a clean machine."""

    software: Software = field(default_factory=Software)
    gpus: Gpus = field(default_factory=Gpus)
    limits: Limits = field(default_factory=Limits)
    shm: Space = field(default_factory=lambda: Space("shared memory", "/dev/shm"))  # noqa: S108 - what is looked at
    network: Network = field(default_factory=Network)
    launcher_variables: Pairs = ()
    collective_variables: Pairs = ()
    orphans: tuple[Orphan, ...] = ()
    spaces: tuple[Space, ...] = ()
    locks: Locks = field(default_factory=Locks)
    tracing: Tracing = field(default_factory=Tracing)
    project: Project = field(default_factory=Project)
    in_container: bool = False
