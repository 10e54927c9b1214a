"""`puffrun train`: config, flags and machine become a plan; the plan is shown or carried out."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from puffrun.cli.caller import Caller
from puffrun.cli.options import ConfigFile, IsModule
from puffrun.cli.standard_streams import write_stdout
from puffrun.cluster import detect_allocation
from puffrun.config import RunConfig, apply_flags, load_config
from puffrun.errors import UsageError
from puffrun.plan import Invocation, LaunchPlan, check_plan, make_plan, plan_as_json
from puffrun.process import run_captured
from puffrun.rundir import make_run_id

_GPUS = "Ranks per node, one GPU each; all: every visible GPU; auto: all, or the CPU without any."
_RUN = "Where this run's files go (default: .puffrun/runs/RUN_ID)."
_SHOW = "Ranks whose output is shown; all of it is in the logs (default: 0)."
_ONLY_SHOW = ("--dry-run", "--no-dry-run", "--json", "--no-json")
Text = str | None


def train(  # noqa: PLR0913 - Typer reads one parameter an option
    ctx: typer.Context,
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET] [ARGS]...",
            help="A script, or a module with -m; then its own arguments.",
        ),
    ] = None,
    *,
    config: ConfigFile = None,
    is_module: IsModule = False,
    gpus: Annotated[Text, typer.Option(metavar="N|all|auto", help=_GPUS)] = None,
    gpu_ids: Annotated[Text, typer.Option(metavar="LIST", help="Just these GPUs: 0,2,5.")] = None,
    cpus: Annotated[Text, typer.Option(metavar="N", help="Ranks on the CPU (gloo).")] = None,
    nodes: Annotated[
        Text, typer.Option(metavar="N", help="Reserved: a run has one node so far.")
    ] = None,
    node_rank: Annotated[Text, typer.Option(metavar="R", help="This node's number.")] = None,
    rdzv_endpoint: Annotated[Text, typer.Option(metavar="HOST:PORT", help="Node 0.")] = None,
    grace: Annotated[Text, typer.Option(metavar="S", help="SIGTERM to SIGKILL (10).")] = None,
    stall_timeout: Annotated[
        Text, typer.Option(metavar="S", help="No progress for S seconds is a hang (600; 0: off).")
    ] = None,
    exit_timeout: Annotated[
        Text, typer.Option(metavar="S", help="How long ranks may outlast one that exited 0 (60).")
    ] = None,
    dead_child_timeout: Annotated[
        Text,
        typer.Option(metavar="S", help="How long a rank may leave a dead child unnoticed (5)."),
    ] = None,
    timeout: Annotated[
        Text, typer.Option(metavar="S", help="Limit of the whole run (0: none).")
    ] = None,
    max_restarts: Annotated[Text, typer.Option(metavar="N", help="Restarts (0).")] = None,
    preload: Annotated[
        bool | None,
        typer.Option("--preload/--no-preload", help="Import torch once for all ranks (yes)."),
    ] = None,
    show_ranks: Annotated[Text, typer.Option(metavar="LIST|all", help=_SHOW)] = None,
    run_dir: Annotated[Text, typer.Option(metavar="DIR", help=_RUN)] = None,
    dry_run: Annotated[bool, typer.Option(help="Print the plan; start and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: as JSON.")] = False,
) -> int:
    """Build what is stale, then train on all ranks.

    Options stand before TARGET; everything after it goes to the program verbatim. Without TARGET
    the program is that of the config.
    """
    if as_json and not dry_run:
        raise UsageError("--json goes with --dry-run", hint="`puffrun report --json` after the run")
    flags: dict[str, str | bool | None] = {
        "gpus": gpus,
        "gpu-ids": gpu_ids,
        "cpus": cpus,
        "nodes": nodes,
        "node-rank": node_rank,
        "rdzv-endpoint": rdzv_endpoint,
        "grace": grace,
        "stall-timeout": stall_timeout,
        "exit-timeout": exit_timeout,
        "dead-child-timeout": dead_child_timeout,
        "timeout": timeout,
        "max-restarts": max_restarts,
        "preload": preload,
        "show-ranks": show_ranks,
        "run-dir": run_dir,
    }
    caller: Caller = ctx.obj
    asked = load_asked(caller, config, flags)
    asked = take_target(asked, target or [], caller.cwd, is_module=is_module)
    plan = make_checked_plan(asked, caller, target or [])
    if dry_run:
        return _show_plan(plan, asked, caller, as_json=as_json)
    return _launch(plan, asked, caller)


def load_asked(
    caller: Caller, path: Path | None, flags: Mapping[str, str | bool | None]
) -> RunConfig:
    """Load the config and put the flags over it."""
    config = load_config(path, caller.cwd)
    caller.state_dir = config.state_dir
    return replace(config, launch=apply_flags(config.launch, flags, caller.cwd))


def take_target(
    config: RunConfig, words: Sequence[str], cwd: Path, *, is_module: bool
) -> RunConfig:
    """Put a TARGET with its ARGS in the place of the config's program."""
    if not words:
        if is_module:
            raise UsageError("-m without a module", hint="`puffrun train -m package.module`")
        return config
    name, args = words[0], tuple(words[1:])
    if not name:
        raise UsageError("TARGET is empty", hint="`puffrun train train.py`")
    script = None if is_module else Path(os.path.abspath(cwd / name))  # noqa: PTH100 - links are kept
    module = name if is_module else None
    return replace(config, train=replace(config.train, script=script, module=module, args=args))


def make_checked_plan(config: RunConfig, caller: Caller, target: Sequence[str]) -> LaunchPlan:
    """Plan for this machine, and look at the files that the plan names."""
    allocation = detect_allocation(caller.environ, run_captured, nodes=config.launch.nodes)
    invocation = Invocation(
        cwd=caller.cwd,
        python=sys.executable,
        environ=caller.environ,
        run_id=make_run_id(),
        again=make_again(caller.argv, target),
    )
    plan = make_plan(config, allocation, invocation)
    check_plan(plan, sys.path)
    return plan


def make_again(argv: Sequence[str], target: Sequence[str]) -> str:
    """Make the command line that does the same again.

    A run directory is used once, so `--run-dir` is left out; `--dry-run` only shows.
    """
    kept: list[str] = []
    words = iter(argv[: len(argv) - len(target)])
    for word in words:
        if word == "--run-dir":
            next(words, None)
        elif not word.startswith("--run-dir=") and word not in _ONLY_SHOW:
            kept.append(word)
    return shlex.join(["puffrun", *kept, *target])


def _show_plan(plan: LaunchPlan, config: RunConfig, caller: Caller, *, as_json: bool) -> int:
    from puffrun.artifacts import check_artifacts, render_reasons
    from puffrun.console.plan_text import render_plan

    names = tuple(spec.name for spec in plan.artifacts)
    checked = check_artifacts(config, names, env=caller.environ) if names else ()
    if as_json:
        artifacts = [
            {
                "name": c.name,
                "fresh": c.fresh,
                "reasons": [str(reason) for reason in c.reasons],
                "dir": None if c.dir is None else str(c.dir),
            }
            for c in checked
        ]
        return write_stdout(json.dumps(plan_as_json(plan) | {"artifacts": artifacts}) + "\n")
    rows = [
        (c.name, "fresh" if c.fresh else f"stale: {render_reasons(c.reasons)}") for c in checked
    ]
    return write_stdout("\n".join(render_plan(plan, rows, caller.cwd)) + "\n")


def _launch(plan: LaunchPlan, config: RunConfig, caller: Caller) -> int:
    from puffrun.console import LaunchScreen, make_screen
    from puffrun.launch import catch_signals, launch

    screen = LaunchScreen(make_screen(sys.stderr, caller.environ), shown_from=caller.cwd)
    with catch_signals() as inbox:
        return launch(plan, config, caller.environ, screen, inbox).exit_code
