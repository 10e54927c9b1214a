"""`puffrun smoke`: a short run that CI can trust, and with `--wheel` the release gate."""

import importlib.util
import signal
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from puffrun.cli.build import stopped_by_signals
from puffrun.cli.caller import Caller
from puffrun.cli.options import ConfigFile, IsModule
from puffrun.cli.smoke_verdict import Reporter, make_reporter
from puffrun.cli.train import load_asked, make_checked_plan, take_target
from puffrun.cluster import detect_allocation
from puffrun.config import LAUNCH_KEYS, RunConfig
from puffrun.console import LaunchScreen, make_screen
from puffrun.errors import PuffrunError, UsageError
from puffrun.launch import SignalInbox, catch_signals, launch
from puffrun.outcome import Outcome
from puffrun.package import PACKAGE_DIR
from puffrun.plan import LaunchPlan
from puffrun.process import run_captured
from puffrun.rundir import RunDir
from puffrun.smoke import (
    GateRequest,
    GateRun,
    collect_evidence,
    compile_allowed,
    judge_run,
    open_wheel,
    pass_gate,
)
from puffrun.smoke.judge import Rules
from puffrun.smoke.smoke_findings import ENV_MAX_STEPS, ENV_SMOKE

# what a smoke run waits for at most, where the config would wait longer
GRACE_S, STALL_S, EXIT_S = 5.0, 30.0, 20.0
TIMEOUT = "120"
MAX_DIGITS = 19  # of a number of steps: what a program can count to
NO_LIMIT_S = 24 * 3600.0  # of the gate's wait for a run that has none
Text = str | None


def smoke(  # noqa: PLR0913 - Typer reads one parameter an option
    ctx: typer.Context,
    target: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TARGET] [ARGS]...", help="As for `puffrun train`."),
    ] = None,
    *,
    config: ConfigFile = None,
    is_module: IsModule = False,
    cpus: Annotated[Text, typer.Option(metavar="N", help="Ranks on the CPU (2).")] = None,
    gpus: Annotated[Text, typer.Option(metavar="N|all", help="Ranks with a GPU each.")] = None,
    steps: Annotated[
        str, typer.Option(metavar="N", help=f"What the program gets as {ENV_MAX_STEPS}.")
    ] = "10",
    timeout: Annotated[
        str, typer.Option(metavar="S", help="Hard limit of the whole run, artifacts included.")
    ] = TIMEOUT,
    stall_timeout: Annotated[
        Text, typer.Option(metavar="S", help="No progress for S seconds is a hang (30).")
    ] = None,
    exit_timeout: Annotated[
        Text, typer.Option(metavar="S", help="How long ranks may outlast one that exited 0 (20).")
    ] = None,
    grace: Annotated[Text, typer.Option(metavar="S", help="SIGTERM to SIGKILL (5).")] = None,
    run_dir: Annotated[Text, typer.Option(metavar="DIR", help="Where the run's files go.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="REGEX", help="Output that is harmless; may be given again."),
    ] = None,
    progress_check: Annotated[
        bool,
        typer.Option(help="Whether ranks must show that they trained."),
    ] = True,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the verdict as JUnit XML.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the verdict as JSON, the program's output not.")
    ] = False,
    wheel: Annotated[
        Text, typer.Option(metavar="FILE", help="The release gate: prove this wheel instead.")
    ] = None,
    extra_site: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="With --wheel: a site-packages to borrow; repeatable."),
    ] = None,
) -> int:
    """Run a few steps on two CPU ranks and judge: green (0), or red with what is wrong.

    Options stand before TARGET; everything after it goes to the program verbatim.
    """
    caller: Caller = ctx.obj
    flags: dict[str, str | bool | None] = {
        "cpus": cpus if cpus or gpus else "2",
        "gpus": gpus,
        "timeout": timeout,
        "stall-timeout": stall_timeout,
        "exit-timeout": exit_timeout,
        "grace": grace,
        "run-dir": run_dir,
    }
    reporter = make_reporter(caller, junit, as_json=as_json)
    try:
        asked = Asked(
            config=config,
            words=tuple(target or ()),
            is_module=is_module,
            flags=flags,
            steps=_read_steps(steps),
            allow=tuple(allow or ()),
            progress_check=progress_check,
            as_json=as_json,
            extra_sites=tuple(extra_site or ()),
        )
        if wheel is not None:
            return _pass_gate(wheel, asked, caller, reporter)
        return _run(asked, caller, reporter)
    except PuffrunError as error:
        reporter.report_error(error, "smoke" if wheel is None else "gate")
        raise


def _read_steps(text: str) -> int:
    """Read `--steps` here, not in the parser of options: a mistake reaches the JUnit file too."""
    if not (text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS and int(text) > 0):
        raise UsageError(
            f"`--steps` must be a whole number, 1 or more, not {text:.20}", hint="`--steps 10`"
        )
    return int(text)


@dataclass(frozen=True)
class Asked:
    """The command line of `puffrun smoke`."""

    config: Path | None
    words: tuple[str, ...]
    is_module: bool
    flags: dict[str, str | bool | None]
    steps: int
    allow: tuple[str, ...]
    progress_check: bool
    as_json: bool
    extra_sites: tuple[Path, ...]


def _run(asked: Asked, caller: Caller, reporter: Reporter) -> int:
    if asked.extra_sites:
        raise UsageError("--extra-site goes with --wheel", hint="`puffrun smoke --help`")
    allowed = compile_allowed(asked.allow)
    config = load_asked(caller, asked.config, asked.flags)
    config = take_target(config, asked.words, caller.cwd, is_module=asked.is_module)
    config = _shorten(config, asked)
    plan = make_checked_plan(config, caller, asked.words)
    screen = _SmokeScreen(make_screen(sys.stderr, caller.environ), shown_from=caller.cwd)
    outcome = _launch_within(plan, config, caller, screen)
    evidence = collect_evidence(RunDir(plan.run_dir), outcome, config.root_dir, allowed)
    rules = Rules(
        max_steps=asked.steps,
        timeout_s=plan.timeout_s or 0.0,
        needs_progress=asked.progress_check,
        ran_out_early=screen.ran_out,
        cwd=plan.cwd,
        build_command=plan.build_command,
    )
    result = judge_run(outcome, evidence, rules, str(plan.run_dir))
    log_tail = outcome.cause.log_tail if outcome.cause else ()
    return reporter.report(result, "smoke", log_tail)


def _shorten(config: RunConfig, asked: Asked) -> RunConfig:
    """Cut the patience of a config that is meant for long runs; flags have the last word."""
    launch_options = config.launch
    given = {LAUNCH_KEYS[name].field for name, value in asked.flags.items() if value is not None}
    limits = {"grace_s": GRACE_S, "stall_timeout_s": STALL_S, "exit_timeout_s": EXIT_S}
    shorter: dict[str, Any] = {
        field: min(getattr(launch_options, field) or limit, limit)
        for field, limit in limits.items()
        if field not in given
    }
    if asked.as_json:
        shorter["show_ranks"] = ()
    options = replace(launch_options, max_restarts=0, **shorter)
    env = dict(config.train.env) | {ENV_SMOKE: "1", ENV_MAX_STEPS: str(asked.steps)}
    return replace(config, launch=options, train=replace(config.train, env=tuple(env.items())))


class _SmokeScreen(LaunchScreen):
    """Draws a launch, and notes whether there has been any rank when the time ran out."""

    ranks_began = False
    ran_out = False

    def ranks_starting(self, up: int, total: int) -> None:
        """Show how many ranks are up."""
        self.ranks_began = True
        super().ranks_starting(up, total)


def _launch_within(
    plan: LaunchPlan, config: RunConfig, caller: Caller, screen: _SmokeScreen
) -> Outcome:
    """Launch; the plan's own limit begins with the ranks, so a long build is stopped from here."""
    with catch_signals() as inbox:
        timer = threading.Timer(plan.timeout_s or threading.TIMEOUT_MAX, _run_out, (screen, inbox))
        timer.daemon = True
        timer.start()
        try:
            return launch(plan, config, caller.environ, screen, inbox)
        finally:
            timer.cancel()
            timer.join()


def _run_out(screen: _SmokeScreen, inbox: SignalInbox) -> None:
    if not screen.ranks_began:
        screen.ran_out = True
        inbox.put(signal.SIGTERM)


def _pass_gate(wheel: str, asked: Asked, caller: Caller, reporter: Reporter) -> int:
    opened = open_wheel(wheel, caller.cwd)
    request = GateRequest(
        wheel=opened,
        python=sys.executable,
        has_pip=importlib.util.find_spec("pip") is not None,
        environ=caller.environ,
        extra_sites=tuple(_find_site(site, caller.cwd) for site in asked.extra_sites),
        checkouts=_find_checkouts(caller.cwd),
        target=_choose_target(asked, opened.name),
        runs=_choose_runs(asked, caller),
    )
    screen = make_screen(sys.stderr, caller.environ)
    with stopped_by_signals() as stop:
        result, printed = pass_gate(request, lambda text: screen.say(f"gate  {text}"), stop)
    if printed:
        screen.say_lines(printed)
    return reporter.report(result, "gate", printed[-40:])


def _find_site(site: Path, cwd: Path) -> Path:
    path = (cwd / site).resolve()
    if not path.is_dir():
        raise UsageError(
            f"`--extra-site {site}` is no directory",
            hint="`--extra-site .venv/lib/python3.11/site-packages`",
        )
    return path


def _choose_target(asked: Asked, name: str) -> tuple[str, ...]:
    """What the wheel runs: the packaged demo, or a module that it brings."""
    if asked.config is not None and str(asked.config) != "demo":
        raise UsageError(
            "--wheel reaches no config outside the wheel", hint="`-c demo`, or `-m MODULE`"
        )
    if asked.words and not asked.is_module:
        raise UsageError(
            f"--wheel runs what is in the wheel, and `{asked.words[0]}` is a script outside",
            hint="`puffrun smoke --wheel FILE -m package.module`",
        )
    if asked.words:
        return ("-m", *asked.words)
    if name != "puffrun":
        raise UsageError(
            f"which program of {name} is to run?",
            hint="`puffrun smoke --wheel FILE -m package.module`",
        )
    return ("-c", "demo")


def _choose_runs(asked: Asked, caller: Caller) -> tuple[GateRun, ...]:
    """CPU always, and the GPUs that CUDA_VISIBLE_DEVICES leaves."""
    checked = load_asked(caller, Path("demo"), asked.flags)  # refuses what no run could take
    timeout_s = checked.launch.timeout_s or NO_LIMIT_S
    common = ["--steps", str(asked.steps)]
    names = ("timeout", "stall-timeout", "exit-timeout", "grace")
    for name in names:
        if asked.flags[name] is not None:
            common += [f"--{name}", str(asked.flags[name])]
    for pattern in asked.allow:
        common += ["--allow", pattern]
    common += [] if asked.progress_check else ["--no-progress-check"]
    ranks = str(asked.flags["cpus"] or "2")
    runs = [GateRun("cpu", ("--cpus", ranks, *common), timeout_s)]
    gpus = detect_allocation(caller.environ, run_captured, nodes=1).gpus
    if gpus:
        wanted = str(asked.flags["gpus"] or "all")
        runs.append(GateRun("gpu", ("--gpus", wanted, *common), timeout_s))
    return tuple(runs)


def _find_checkouts(cwd: Path) -> tuple[Path, ...]:
    """Find what must not be reached: the project where the user stands, and our own sources."""
    found = []
    for place in (cwd, *cwd.parents):
        if (place / ".git").exists() or (place / "pyproject.toml").is_file():
            found.append(place.resolve())
            break
    package_dir = PACKAGE_DIR.resolve()
    if package_dir.parent.name not in ("site-packages", "dist-packages"):
        found.append(package_dir.parent)
    return tuple(dict.fromkeys(found))
