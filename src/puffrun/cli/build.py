"""`puffrun build-artifacts`: build what is stale and say on stdout where everything is."""

import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, Literal

import typer

from puffrun.artifacts import (
    LOCK_WAIT_S,
    ArtifactEvent,
    BuildOptions,
    Freshness,
    StaleReason,
    StopToken,
    check_artifacts,
    clean_artifacts,
    ensure_artifacts,
    find_process_start,
    make_cache_key,
)
from puffrun.artifacts.artifact_events import Installed, Retrying, Stale
from puffrun.cli.caller import Caller
from puffrun.cli.options import ConfigFile
from puffrun.cli.standard_streams import write_stdout
from puffrun.config import RunConfig, load_config
from puffrun.console import make_screen
from puffrun.console.artifact_lines import ArtifactScreen
from puffrun.errors import ExitCode, UsageError
from puffrun.outcome import ArtifactResult
from puffrun.rundir import make_run_id

SCHEMA = 1
STALE = 1  # what `--check` exits with
Mode = Literal["build", "check", "explain", "print-key", "force", "clean"]


def build_artifacts(  # noqa: PLR0913 - Typer reads one parameter an option
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAMES]...", help="Artifacts, with all they need (default: all)."),
    ] = None,
    *,
    config: ConfigFile = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only look: exit 0 if all are fresh, else 1.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only look, and tell every reason, old and new.")
    ] = False,
    print_key: Annotated[
        bool, typer.Option("--print-key", help="Only print a key for a CI cache of .puffrun.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Build even what is fresh.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Remove what was built.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Compiler jobs in all (default: as many as fit)."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line on stdout.")
    ] = False,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Exit 72 rather than wait for somebody's build.")
    ] = False,
) -> int:
    """Build what is stale, once, and print a line `NAME DIRECTORY` for each artifact."""
    caller: Caller = ctx.obj
    mode = _choose_mode(check=check, explain=explain, print_key=print_key, force=force, clean=clean)
    asked = load_config(config, caller.cwd)
    caller.state_dir = asked.state_dir
    chosen = tuple(names) if names else None
    if chosen is None and not asked.artifacts:
        where = f"{asked.path} has no" if asked.path else "there is no config with an"
        make_screen(sys.stderr, caller.environ).say(f"nothing to do: {where} [artifacts.NAME]")
    if mode == "print-key":
        return _print_key(make_cache_key(asked, chosen, env=caller.environ), as_json=as_json)
    if mode == "clean":
        return _print_cleaned(clean_artifacts(asked, chosen), as_json=as_json)
    if mode in ("check", "explain"):
        found = check_artifacts(asked, chosen, env=caller.environ)
        return _print_checked(found, mode, as_json=as_json)
    options = BuildOptions(
        jobs=jobs,
        force=mode == "force",
        lock_wait_s=0.0 if no_wait else LOCK_WAIT_S,
        asked_at=find_process_start(),
    )
    return _build(asked, chosen, caller, options, as_json=as_json)


def _choose_mode(**flags: bool) -> Mode:
    """Find the one thing to do."""
    given = [name.replace("_", "-") for name, value in flags.items() if value]
    if len(given) > 1:
        raise UsageError(
            f"--{given[0]} and --{given[1]} exclude each other",
            hint=f"`puffrun build-artifacts --{given[0]}`",
        )
    modes: dict[str, Mode] = {
        "check": "check",
        "explain": "explain",
        "print-key": "print-key",
        "force": "force",
        "clean": "clean",
    }
    return modes[given[0]] if given else "build"


def _build(
    config: RunConfig,
    names: Sequence[str] | None,
    caller: Caller,
    options: BuildOptions,
    *,
    as_json: bool,
) -> int:
    screen = make_screen(sys.stderr, caller.environ)
    draw = ArtifactScreen(screen, shown_from=caller.cwd)
    try:
        with stopped_by_signals() as stop:
            results = ensure_artifacts(
                config,
                names,
                env=caller.environ,
                run_id=make_run_id(),
                options=options,
                emit=_with_json(draw) if as_json else draw,
                stop=stop,
            )
    finally:
        screen.clear_live()
    return _print_results(results, as_json=as_json)


@contextmanager
def stopped_by_signals() -> Iterator[StopToken]:
    """Turn SIGINT, SIGTERM and SIGHUP into a request to stop; an ignored one stays ignored."""
    stop = StopToken()

    def request_stop(signum: int, _frame: FrameType | None) -> None:
        stop.set(signum)

    signums = [
        signum
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(signum) is not signal.SIG_IGN
    ]
    before = {signum: signal.signal(signum, request_stop) for signum in signums}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def _with_json(draw: Callable[[ArtifactEvent], None]) -> Callable[[ArtifactEvent], None]:
    """Print each event as a JSON line too, as it happens."""

    def emit(event: ArtifactEvent) -> None:
        draw(event)
        value = {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}
        if isinstance(event, Stale | Retrying | Installed):
            value["reasons"] = _reasons_as_json(event.reasons)
        _print_json(value)

    return emit


def _reasons_as_json(reasons: Sequence[StaleReason]) -> list[dict[str, Any]]:
    return [{**dataclasses.asdict(reason), "text": str(reason)} for reason in reasons]


def _print_results(results: Sequence[ArtifactResult], *, as_json: bool) -> int:
    if as_json:
        for result in results:
            _print_json({"event": "result", **dataclasses.asdict(result)})
        return int(ExitCode.OK)
    return write_stdout("".join(f"{result.name} {result.dir}\n" for result in results))


def _print_checked(found: Sequence[Freshness], mode: Mode, *, as_json: bool) -> int:
    all_fresh = all(freshness.fresh for freshness in found)
    if as_json:
        for freshness in found:
            _print_json(_freshness_as_json(freshness))
    else:
        lines = [line for freshness in found for line in _say_freshness(freshness, mode)]
        write_stdout("".join(line + "\n" for line in lines))
    return int(ExitCode.OK) if all_fresh or mode == "explain" else STALE


def _say_freshness(freshness: Freshness, mode: Mode) -> list[str]:
    state = "fresh" if freshness.fresh else "stale"
    if mode == "check":
        reason = "" if freshness.fresh else f": {freshness.reason}"
        return [f"{freshness.name}  {state}{reason}"]
    return [
        f"{freshness.name}  {state}",
        *(f"    {reason.explain()}" for reason in freshness.reasons),
        f"    fingerprint {freshness.fingerprint[:16]} of {freshness.covers}",
        *([f"    in {freshness.dir}"] if freshness.dir else []),
    ]


def _freshness_as_json(freshness: Freshness) -> dict[str, Any]:
    return {
        "event": "checked",
        "name": freshness.name,
        "fresh": freshness.fresh,
        "reasons": _reasons_as_json(freshness.reasons),
        "fingerprint": freshness.fingerprint,
        "dir": freshness.dir,
    }


def _print_key(key: str, *, as_json: bool) -> int:
    if as_json:
        _print_json({"event": "key", "key": key})
        return int(ExitCode.OK)
    return write_stdout(f"{key}\n")


def _print_cleaned(names: Sequence[str], *, as_json: bool) -> int:
    for name in names:
        if as_json:
            _print_json({"event": "cleaned", "name": name})
        else:
            write_stdout(f"{name}  removed\n")
    return int(ExitCode.OK)


def _print_json(value: dict[str, Any]) -> None:
    write_stdout(json.dumps({"schema": SCHEMA, **value}, default=str) + "\n")
