"""The values of a config: frozen, with every default in one place."""

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class TrainSection:
    """`[train]`: the program. At most one of `script` (absolute) and `module`."""

    script: Path | None = None
    module: str | None = None
    args: tuple[str, ...] = ()
    cwd: Path | None = None  # None: where the user stands
    env: tuple[tuple[str, str], ...] = ()
    artifacts: tuple[str, ...] | None = None  # None: all of them


@dataclass(frozen=True)
class LaunchOptions:
    """`[launch]` and the options of `puffrun train`. None: not given. Durations in seconds."""

    gpus: int | Literal["all", "auto"] | None = None
    gpu_ids: tuple[str, ...] | None = None
    cpus: int | None = None
    nodes: int | None = None
    node_rank: int | None = None
    rdzv_endpoint: str | None = None
    grace_s: float = 10.0
    stall_timeout_s: float = 600.0  # 0: off
    exit_timeout_s: float = 60.0
    dead_child_timeout_s: float = 5.0
    timeout_s: float | None = None  # None: no limit, written as 0
    max_restarts: int = 0
    preload: bool = True
    show_ranks: tuple[int, ...] | Literal["all"] = (0,)
    run_dir: Path | None = None


@dataclass(frozen=True)
class ArtifactSpec:
    """`[artifacts.NAME]`: one thing to build. Globs and outputs are relative POSIX paths."""

    name: str
    cmd: tuple[str, ...]
    outputs: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    install: tuple[tuple[str, str], ...] = ()
    mode: Literal["staged", "inplace"] = "staged"
    timeout_s: float = 1800.0


@dataclass(frozen=True)
class RunConfig:
    """Everything that was asked. `root_dir` is what relative paths in the config refer to.

    `state_dir` is the `.puffrun` directory that holds runs and artifacts.
    """

    root_dir: Path
    state_dir: Path
    path: Path | None = None
    train: TrainSection = field(default_factory=TrainSection)
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    artifacts: tuple[ArtifactSpec, ...] = ()
    given_as: str | None = None  # what `-c` said; None: it was found where the user stands

    @property
    def config_words(self) -> tuple[str, ...]:
        """What another command needs to find this config too."""
        return () if self.given_as is None else ("-c", self.given_as)

    @property
    def build_command(self) -> str:
        """The command line that builds its artifacts; names may follow."""
        return shlex.join(["puffrun", "build-artifacts", *self.config_words])
