"""What the cards need to know of a plan, whether it is at hand or read from a report."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from puffrun.plan import LaunchPlan


@dataclass(frozen=True)
class RunFacts:
    """The plan's part of a card. Paths below `shown_from` are shown relative to it."""

    run_id: str
    run_dir: Path
    cwd: Path
    shown_from: Path
    program: str = ""
    again: str = ""
    nodes: int = 1
    ranks_per_node: int = 1
    on_gpus: bool = False
    device_name: str = ""
    stall_timeout_s: float = 0.0
    exit_timeout_s: float = 0.0
    timeout_s: float | None = None
    build_command: str = "puffrun build-artifacts"
    report_command: str = ""  # how to see this again; empty where that is being done

    def path(self, path: str | Path) -> str:
        """Show a path the way the user would type it."""
        return relative_path(path, self.shown_from)


def facts_of(plan: LaunchPlan, shown_from: Path) -> RunFacts:
    """Take the facts from a plan."""
    return RunFacts(
        run_id=plan.run_id,
        run_dir=plan.run_dir,
        cwd=plan.cwd,
        shown_from=shown_from,
        program=plan.program,
        again=plan.again,
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        on_gpus=plan.backend == "nccl",
        device_name=plan.device_name,
        stall_timeout_s=plan.stall_timeout_s,
        exit_timeout_s=plan.exit_timeout_s,
        timeout_s=plan.timeout_s,
        build_command=plan.build_command,
        report_command=_word_report(plan, shown_from),
    )


def _word_report(plan: LaunchPlan, shown_from: Path) -> str:
    """Say how to see the report again; the last run is kept with its config."""
    is_here = plan.state_dir.parent == shown_from
    return shlex.join(["puffrun", "report", *(() if is_here else plan.config_words)])


def facts_from_json(
    plan: Mapping[str, Any], run_id: str, run_dir: Path, shown_from: Path
) -> RunFacts:
    """Take the facts from a report's plan; what is absent or odd is left out of the card."""
    return RunFacts(
        run_id=run_id,
        run_dir=run_dir,
        cwd=Path(_text(plan, "cwd") or shown_from),
        shown_from=shown_from,
        program=_text(plan, "program"),
        again=_text(plan, "again"),
        nodes=int(_number(plan, "nodes") or 1),
        ranks_per_node=int(_number(plan, "ranks_per_node") or 1),
        on_gpus=plan.get("backend") == "nccl",
        device_name=_text(plan, "device_name"),
        stall_timeout_s=_number(plan, "stall_timeout_s") or 0.0,
        exit_timeout_s=_number(plan, "exit_timeout_s") or 0.0,
        timeout_s=_number(plan, "timeout_s"),
        build_command=_text(plan, "build_command") or "puffrun build-artifacts",
    )


def relative_path(path: str | Path, start: Path) -> str:
    """Show a path relative to `start` when it lies below it."""
    try:
        return str(Path(path).relative_to(start))
    except ValueError:
        return str(path)


def _text(plan: Mapping[str, Any], name: str) -> str:
    value = plan.get(name)
    return value if isinstance(value, str) else ""


def _number(plan: Mapping[str, Any], name: str) -> float | None:
    value = plan.get(name)
    return value if isinstance(value, int | float) else None
