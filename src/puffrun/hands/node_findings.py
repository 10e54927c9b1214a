"""What the files of this node say once its ranks are gone: a report's part that nobody observed."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from puffrun.evidence import read_crash_frames, read_log_tail
from puffrun.heartbeat import read_heartbeat
from puffrun.outcome import Cause, Frame, Process
from puffrun.process import GuardedExit, ProcStat
from puffrun.rundir import RunDir, find_full_disk, read_checkpoint

CHECKPOINT_LINE = re.compile(r"^checkpoint (\S+)$", re.MULTILINE)
UNRECORDED_LINE = re.compile(
    r"puffrun: could not record the exception of rank \d+: (.*)$", re.MULTILINE
)
LOG_SEARCH_LINES = 1000


@dataclass(frozen=True)
class RankTraces:
    """What one rank left: when it last said something, and where its files are.

    `step` is the last that it reported with `progress`; paths are relative to the run directory.
    """

    rank: int
    log_path: str | None = None
    stack_path: str | None = None
    last_progress: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class NodeFindings:
    """What one node's part of an attempt left; `checkpoint` is the last one that it knows of."""

    ranks: Mapping[int, RankTraces] = field(default_factory=dict)
    checkpoint: str | None = None
    checkpoint_at: int | None = None
    cleaned: tuple[Process, ...] = ()
    leftovers: tuple[Process, ...] = ()

    @property
    def step(self) -> int | None:
        """The highest step that a rank reported."""
        steps = [each.step for each in self.ranks.values() if each.step is not None]
        return max(steps, default=None)


@dataclass(frozen=True)
class RankFindings:
    """What the files say of the rank, or the agent, that the verdict is about."""

    log_tail: tuple[str, ...] = ()
    frames: tuple[Frame, ...] = ()
    not_recorded: str | None = None


def find_traces(
    run_dir: RunDir, ranks: Iterable[int], rank_pids: Mapping[int, int], ended: GuardedExit
) -> NodeFindings:
    """Look through the files of this node's `ranks`; `rank_pids` are those that have started."""
    pids = {pid: rank for rank, pid in rank_pids.items()}
    recorded = read_checkpoint(run_dir) or {}
    return NodeFindings(
        ranks={rank: _find_rank(run_dir, rank) for rank in rank_pids},
        checkpoint=str(recorded["path"]) if recorded else _find_named(run_dir, ranks),
        checkpoint_at=recorded.get("at"),
        cleaned=as_processes((stat for stat in ended.cleaned if stat.pid not in pids), pids),
        leftovers=as_processes(ended.leftovers, pids),
    )


def find_about(run_dir: RunDir, cause: Cause) -> RankFindings:
    """Look for what the whole log and the other files add to a cause."""
    tail = cause.log_tail
    if cause.rank is not None:
        tail = read_log_tail(run_dir.log_path(cause.rank))
    elif cause.kind == "agent-lost":
        tail = read_log_tail(run_dir.agent_log_path)
    frames: tuple[Frame, ...] = cause.frames
    if cause.kind in ("signal", "oom") and cause.rank is not None:
        frames = read_crash_frames(run_dir.crash_path(cause.rank))
    why = _find_why_unrecorded(run_dir, cause.rank) if cause.kind == "exit" else None
    return RankFindings(tail, frames, why)


def as_processes(stats: Iterable[ProcStat], pids: Mapping[int, int]) -> tuple[Process, ...]:
    """Name processes; a rank leads its own session, so the session tells whose they were."""
    return tuple(Process(stat.pid, stat.name, pids.get(stat.session), stat.state) for stat in stats)


def _find_rank(run_dir: RunDir, rank: int) -> RankTraces:
    log_path, stack_path = run_dir.log_path(rank), run_dir.stack_path(rank)
    beat = read_heartbeat(run_dir.heartbeat_path(rank))
    signs = [log_path.stat().st_mtime_ns] if log_path.exists() else []
    return RankTraces(
        rank=rank,
        log_path=str(log_path.relative_to(run_dir.path)),
        stack_path=str(stack_path.relative_to(run_dir.path)) if stack_path.exists() else None,
        last_progress=max([*signs, beat.at] if beat is not None else signs, default=None),
        step=None if beat is None else beat.step,
    )


def _find_named(run_dir: RunDir, ranks: Iterable[int]) -> str | None:
    """Find the last checkpoint that a rank has named in a line `checkpoint PATH`."""
    for rank in ranks:
        tail = read_log_tail(run_dir.log_path(rank), LOG_SEARCH_LINES)
        named = CHECKPOINT_LINE.findall("\n".join(tail))
        if named:
            return str(named[-1])
    return None


def _find_why_unrecorded(run_dir: RunDir, rank: int | None) -> str | None:
    """Find why a rank that exited by itself recorded nothing: it may have raised, without room."""
    full = find_full_disk(run_dir)
    if full is not None:
        return f"the run directory's disk is full ({full})"
    if rank is None:
        return None
    lines = read_log_tail(run_dir.log_path(rank), LOG_SEARCH_LINES)
    told = UNRECORDED_LINE.findall("\n".join(lines))
    return str(told[-1]) if told else None
