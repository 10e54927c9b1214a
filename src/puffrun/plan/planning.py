"""Makes the plan: every decision of a launch, before anything happens. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from puffrun.cluster import Allocation
from puffrun.config import ArtifactSpec, LaunchOptions, RunConfig, TrainSection
from puffrun.errors import UsageError
from puffrun.plan.devices import choose_devices
from puffrun.plan.launch_plan import LaunchPlan
from puffrun.plan.rank_environment import make_environment
from puffrun.rundir import runs_dir


@dataclass(frozen=True)
class Invocation:
    """How puffrun was called. `again` is the command line that does the same again."""

    cwd: Path
    python: str
    environ: Mapping[str, str]
    run_id: str
    again: str


def make_plan(config: RunConfig, allocation: Allocation, invocation: Invocation) -> LaunchPlan:
    """Decide everything about a launch.

    Raises:
        UsageError: what was asked cannot be done with what there is.
    """
    options, train = config.launch, config.train
    _refuse_several_nodes(options, allocation)
    target, program = _name_program(train, invocation.cwd)
    devices = choose_devices(options, allocation)
    _refuse_unknown_ranks(options, devices.ranks)
    source = config.path.name if config.path else "config"
    environment = make_environment(invocation.environ, train.env, source, devices, allocation.cores)
    return LaunchPlan(
        run_id=invocation.run_id,
        run_dir=options.run_dir or runs_dir(config.state_dir) / invocation.run_id,
        state_dir=config.state_dir,
        root_dir=config.root_dir,
        argv=(invocation.python, "-u", *target, *train.args),
        program=program,
        cwd=train.cwd or invocation.cwd,
        backend=devices.backend,
        ranks_per_node=devices.ranks,
        nodes=1,
        node_rank=0,
        rdzv_endpoint=None,
        devices=devices.entries,
        device_name=devices.name,
        env=environment.env,
        env_set=environment.changes,
        env_ignored=environment.ignored,
        artifacts=_select_artifacts(config),
        grace_s=options.grace_s,
        stall_timeout_s=options.stall_timeout_s,
        exit_timeout_s=options.exit_timeout_s,
        dead_child_timeout_s=options.dead_child_timeout_s,
        timeout_s=options.timeout_s,
        max_restarts=options.max_restarts,
        preload=options.preload,
        show_ranks=options.show_ranks,
        again=invocation.again,
        config_words=config.config_words,
        build_command=config.build_command,
    )


def _name_program(train: TrainSection, cwd: Path) -> tuple[tuple[str, ...], str]:
    """Return what python is told to run, and how it is called on the screen."""
    if train.module is not None:
        return ("-m", train.module), f"-m {train.module}"
    if train.script is None:
        raise UsageError(
            "there is nothing to train: no TARGET was given and the config has no [train] program",
            hint='`puffrun train train.py`, or `script = "train.py"` under [train] in puffrun.toml',
        )
    path = train.script
    shown = path.relative_to(cwd) if path.is_relative_to(cwd) else path
    return (str(path),), str(shown)


def _refuse_several_nodes(options: LaunchOptions, allocation: Allocation) -> None:
    nodes = options.nodes if options.nodes is not None else allocation.nodes
    if nodes > 1:
        asked = "were asked for" if options.nodes else "were given by Slurm"
        raise UsageError(
            f"{nodes} nodes {asked}; several nodes are not supported yet", hint="`--nodes 1`"
        )
    if options.node_rank:
        raise UsageError(f"--node-rank {options.node_rank} does not exist on 1 node")
    if options.rdzv_endpoint is not None:
        raise UsageError("--rdzv-endpoint is for several nodes, which are not supported yet")


def _refuse_unknown_ranks(options: LaunchOptions, ranks: int) -> None:
    if options.show_ranks == "all":
        return
    for rank in options.show_ranks:
        if rank >= ranks:
            raise UsageError(
                f"--show-ranks names rank {rank}, and the run has "
                f"{'rank 0 only' if ranks == 1 else f'ranks 0 to {ranks - 1}'}",
                hint="`--show-ranks all`",
            )


def _select_artifacts(config: RunConfig) -> tuple[ArtifactSpec, ...]:
    """Return what [train] asks for; all artifacts when it does not say."""
    names = config.train.artifacts
    return tuple(a for a in config.artifacts if names is None or a.name in names)
