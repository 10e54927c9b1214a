"""The text of `--dry-run`: the whole plan on a few lines. Pure."""

import shlex
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from puffrun.plan import LaunchPlan

_LABEL_WIDTH = 12
_WIDTH = 100
_GAP = "   "


def render_plan(plan: LaunchPlan, artifacts: Sequence[tuple[str, str]], cwd: Path) -> list[str]:
    """Render a plan; `artifacts` are (name, freshness in words), paths are shown from `cwd`."""
    sections = (
        ("program", _program(plan, cwd)),
        ("ranks", [_ranks(plan), _start(plan)]),
        ("artifacts", _artifacts(artifacts)),
        ("environment", _environment(plan)),
        ("watch", [_watch(plan)]),
        ("run", [_run(plan, cwd)]),
        ("torchrun", [_torchrun(plan)]),
    )
    return [line for label, lines in sections for line in _label(label, lines)]


def _label(label: str, lines: Sequence[str]) -> list[str]:
    """Put a label before the first of some lines."""
    return [f"{label if i == 0 else '':<{_LABEL_WIDTH}}{line}" for i, line in enumerate(lines)]


def show_path(path: Path, cwd: Path) -> str:
    """Show a path as one would type it in `cwd`."""
    return str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path)


def _program(plan: LaunchPlan, cwd: Path) -> list[str]:
    words = list(plan.argv[1:])
    if words[1] != "-m":
        words[1] = show_path(Path(words[1]), cwd)
    return [f"python {shlex.join(words)}{_GAP}cwd {show_path(plan.cwd, cwd)}"]


def _ranks(plan: LaunchPlan) -> str:
    if not plan.devices:
        return f"{plan.ranks_per_node} on this machine, on the CPU (gloo)"
    *first, last = plan.devices
    devices = f"{', '.join(first)} and {last}" if first else last
    return f"{plan.ranks_per_node} on this machine, GPU {devices}, {plan.device_name} (NCCL)"


def _start(plan: LaunchPlan) -> str:
    if plan.preload:
        return "forked from one process that has imported torch (--preload)"
    return "each imports torch by itself (--no-preload)"


def _artifacts(artifacts: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in artifacts), default=0)
    return [f"{name:<{width}}  {text}" for name, text in artifacts] or ["none"]


def _environment(plan: LaunchPlan) -> list[str]:
    """Render what is set, with its reason, and what of an outer launcher is ignored."""
    items = []
    for why, group in groupby(plan.env_set, key=lambda change: change[2]):
        words = [f"{name}={shlex.quote(value)}" for name, value, _ in group]
        items += _fill([*words, f"({why})"], " ")
    lines = _fill(items, _GAP) or ["as it is"]
    for name, value in plan.env_ignored:
        lines.append(f"ignored: {name}={shlex.quote(value)} (left over from another launcher)")
    return lines


def _fill(words: Sequence[str], gap: str) -> list[str]:
    """Put words beside each other as long as they fit on a line; none is broken."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(gap) + len(word) <= _WIDTH - _LABEL_WIDTH:
            lines[-1] += gap + word
        else:
            lines.append(word)
    return lines


def _watch(plan: LaunchPlan) -> str:
    parts = [
        f"grace {plan.grace_s:g} s",
        f"stall {plan.stall_timeout_s:g} s" if plan.stall_timeout_s else "stall off",
        f"exit {plan.exit_timeout_s:g} s",
        "no time limit" if plan.timeout_s is None else f"at most {plan.timeout_s:g} s",
    ]
    if plan.max_restarts:
        parts.append(f"restarts {plan.max_restarts}")
    return _GAP.join(parts)


def _run(plan: LaunchPlan, cwd: Path) -> str:
    """Show the run directory; the id of a run that does not happen is of no interest."""
    path = plan.run_dir
    if path.name == plan.run_id:
        path = path.with_name("<id>")
    return show_path(path, cwd)


def _torchrun(plan: LaunchPlan) -> str:
    return (
        f"python -m torch.distributed.run --nnodes {plan.nodes} "
        f"--nproc-per-node {plan.ranks_per_node} --rdzv-id <id> …"
    )
