"""The live runs of this machine, found by what their processes carry in their environment."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puffrun.heartbeat import Heartbeat, read_heartbeat
from puffrun.process import ProcStat, find_stat, read_stats
from puffrun.rundir import ENV_RUN_DIR, RunDir

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class LiveRun:
    """A run of which a process is alive. Instants are `time.time_ns()`, None when unknown."""

    run_dir: RunDir
    plan: Mapping[str, Any]
    started_at: int | None
    last_output_at: int | None
    state: str  # starting | running | ending
    rank_pids: Mapping[int, int] = field(default_factory=dict)
    stopped_ranks: tuple[int, ...] = ()
    heartbeat: Heartbeat | None = None

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.plan.get("run_id") or self.run_dir.path.name)

    @property
    def world_size(self) -> int:
        """Number of ranks, on all nodes."""
        nodes, ranks = self.plan.get("nodes"), self.plan.get("ranks_per_node")
        if isinstance(nodes, int) and isinstance(ranks, int):
            return nodes * ranks
        return max(self.rank_pids, default=0) + 1


def find_live_runs() -> tuple[LiveRun, ...]:
    """Find the runs of this machine whose processes we may look at: our own user's."""
    stats = read_stats()
    dirs: dict[str, set[int]] = {}
    for stat in stats.values():
        run_dir = _read_environ(stat).get(ENV_RUN_DIR) if stat.alive else None
        if run_dir:
            dirs.setdefault(run_dir, set()).add(stat.pid)
    runs = [_read_run(RunDir(Path(path)), pids, stats) for path, pids in dirs.items()]
    runs = [run for run in runs if run.plan]  # without a plan it is no run of ours
    return tuple(sorted(runs, key=lambda run: run.started_at or 0))


def _read_environ(stat: ProcStat) -> dict[str, str]:
    """Read the environment that a process was started with; {} when it is not ours."""
    try:
        data = Path(f"/proc/{stat.pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in data.decode("utf-8", "replace").split("\0"))
    return {name: value for name, _, value in pairs}


def _read_run(run_dir: RunDir, pids: set[int], stats: Mapping[int, ProcStat]) -> LiveRun:
    events = _read_events(run_dir.events_path)
    started = {e["rank"]: e["pid"] for e in events if e.get("kind") == "RankStarted"}
    ranks = {rank: pid for rank, pid in started.items() if pid in pids and find_stat(pid)}
    kinds = [event.get("kind") for event in events]
    state = "ending" if "stop" in kinds[_last(kinds, "RankStarted") :] else "running"
    beats = [read_heartbeat(run_dir.heartbeat_path(rank)) for rank in sorted(ranks)]
    outputs = [run_dir.log_path(rank) for rank in ranks]
    written = [path.stat().st_mtime_ns for path in outputs if path.exists() and path.stat().st_size]
    return LiveRun(
        run_dir=run_dir,
        plan=_read_plan(run_dir.plan_path),
        started_at=events[0]["at"] if events else None,
        last_output_at=max(written, default=None),
        state=state if started else "starting",
        rank_pids=ranks,
        stopped_ranks=tuple(r for r, pid in sorted(ranks.items()) if stats[pid].state in "Tt"),
        heartbeat=max((b for b in beats if b), key=lambda beat: beat.at, default=None),
    )


def _last(kinds: list[Any], kind: str) -> int:
    """Return the index of the last event of a kind, 0 when there is none."""
    return max((index for index, each in enumerate(kinds) if each == kind), default=0)


def _read_events(path: Path) -> list[dict[str, Any]]:
    """Read an event log; a line that is being written is left out."""
    events = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict):
            events.append(event)
    return events


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return plan if isinstance(plan, dict) else {}
