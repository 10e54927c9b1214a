"""From a watched attempt to an `Outcome`: what the files of the run add to the verdict."""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from puffrun import diagnose
from puffrun.heartbeat import read_heartbeat
from puffrun.launch.attempt import Attempt
from puffrun.launch.errors import read_errors
from puffrun.launch.hang import find_hang
from puffrun.outcome import ArtifactResult, Cause, Hang, Outcome, Process, RankResult, RankState
from puffrun.plan import LaunchPlan
from puffrun.process import GuardedExit, ProcStat
from puffrun.rundir import RunDir, find_full_disk, read_checkpoint
from puffrun.watch import RankView, Verdict, add_late_victims, blame_missing, conclude

CHECKPOINT_LINE = re.compile(r"^checkpoint (\S+)$", re.MULTILINE)
UNRECORDED_LINE = re.compile(
    r"puffrun: could not record the exception of rank \d+: (.*)$", re.MULTILINE
)
LOG_SEARCH_LINES = 1000


@dataclass(frozen=True)
class Conclusion:
    """What every outcome of one run has in common."""

    plan: LaunchPlan
    run_dir: RunDir
    started_at: int
    artifacts: tuple[ArtifactResult, ...] = ()

    def without_ranks(self, verdict: Verdict, leftovers: Iterable[ProcStat] = ()) -> Outcome:
        """Make the outcome of a run that had no ranks yet, or whose ranks are told elsewhere."""
        outcome = Outcome(
            run_id=self.plan.run_id,
            kind=verdict.kind,
            exit_code=verdict.exit_code,
            started_at=self.started_at,
            ended_at=time.time_ns(),
            cause=verdict.cause,
            victims=verdict.victims,
            artifacts=self.artifacts,
            leftovers=_as_processes(leftovers, {}),
        )
        return _unkillable(outcome) if outcome.leftovers else outcome

    def of_attempt(self, attempt: Attempt) -> Outcome:
        """Make the outcome of an attempt that has ended."""
        errors = read_errors(self.run_dir, attempt.state)
        verdict = conclude(attempt.state)
        verdict = add_late_victims(verdict, attempt.state, errors, attempt.stopped_at)
        hang = find_hang(attempt.state, attempt.evidence, self.plan, errors)
        verdict = blame_missing(verdict, attempt.state, hang)
        views = attempt.state.ranks
        ended = attempt.ended or GuardedExit(None)
        rank_pids = {view.pid: rank for rank, view in views.items()}
        strangers = [stat for stat in ended.cleaned if stat.pid not in rank_pids]
        outcome = replace(
            self.without_ranks(self._with_evidence(verdict, hang)),
            hang=hang,
            waiting=attempt.lateness.as_dict() if attempt.lateness.collectives else None,
            ranks=tuple(
                self._rank_result(rank, views.get(rank), verdict)
                for rank in range(self.plan.world_size)
            ),
            cleaned=_as_processes(strangers, rank_pids),
            leftovers=_as_processes(ended.leftovers, rank_pids),
        )
        return _unkillable(outcome) if outcome.leftovers else outcome

    def _with_evidence(self, verdict: Verdict, hang: Hang | None) -> Verdict:
        """Add what only the files of the run know: the whole log, the agent's last words."""
        cause = verdict.cause
        if cause is None:
            return verdict
        if cause.kind == "stall" and cause.rank is None and hang and len(hang.culprits) == 1:
            rank = hang.culprits[0]
            cause = replace(cause, rank=rank, node=rank // self.plan.ranks_per_node)
        if cause.kind in ("signal", "oom") and cause.rank is not None:
            frames = diagnose.read_crash_frames(self.run_dir.crash_path(cause.rank))
            cause = replace(cause, frames=frames)
        detail: dict[str, Any] = dict(cause.detail)
        tail = cause.log_tail
        if cause.rank is not None:
            tail = diagnose.read_log_tail(self.run_dir.log_path(cause.rank))
        elif cause.kind == "agent-lost":
            tail = diagnose.read_log_tail(self.run_dir.agent_log_path)
        if cause.kind == "exit":  # it may have raised and found no room to record that
            why = self._find_why_unrecorded(cause.rank)
            detail |= {} if why is None else {"not_recorded": why}
        checkpoint = self.find_checkpoint()
        if checkpoint:
            detail["checkpoint"] = checkpoint
            detail["checkpoint_at"] = (read_checkpoint(self.run_dir) or {}).get("at")
        return replace(verdict, cause=replace(cause, log_tail=tail, detail=detail))

    def _find_why_unrecorded(self, rank: int | None) -> str | None:
        """Find why a rank could not record its exception; it says so in its log, where it can."""
        full = find_full_disk(self.run_dir)
        if full is not None:
            return f"the run directory's disk is full ({full})"
        if rank is None:
            return None
        lines = diagnose.read_log_tail(self.run_dir.log_path(rank), LOG_SEARCH_LINES)
        told = UNRECORDED_LINE.findall("\n".join(lines))
        return str(told[-1]) if told else None

    def find_checkpoint(self) -> str | None:
        """Find the last checkpoint: of `puffrun.checkpoint`, or of a line `checkpoint PATH`."""
        recorded = read_checkpoint(self.run_dir)
        if recorded is not None:
            return str(recorded["path"])
        for rank in range(self.plan.world_size):
            tail = diagnose.read_log_tail(self.run_dir.log_path(rank), LOG_SEARCH_LINES)
            named = CHECKPOINT_LINE.findall("\n".join(tail))
            if named:
                return str(named[-1])
        return None

    def _find_last_progress(self, rank: int) -> int | None:
        """When a rank last said something: its output, or a heartbeat."""
        log_path = self.run_dir.log_path(rank)
        beat = read_heartbeat(self.run_dir.heartbeat_path(rank))
        signs = [log_path.stat().st_mtime_ns] if log_path.exists() else []
        return max([*signs, beat.at] if beat is not None else signs, default=None)

    def _rank_result(self, rank: int, view: RankView | None, verdict: Verdict) -> RankResult:
        if view is None:  # the run ended before this rank was started
            node, local_rank = divmod(rank, self.plan.ranks_per_node)
            return RankResult(rank, local_rank, node, "killed")
        returncode = view.returncode
        log_path = self.run_dir.log_path(view.rank)
        stack_path = self.run_dir.stack_path(view.rank)
        return RankResult(
            rank=view.rank,
            local_rank=view.local_rank,
            node=view.node,
            state=_rank_state(view, verdict),
            pid=view.pid,
            exit_code=returncode if returncode is not None and returncode >= 0 else None,
            signal=-returncode if returncode is not None and returncode < 0 else None,
            started_at=view.started_at,
            ended_at=view.ended_at,
            last_progress=self._find_last_progress(view.rank),
            log_path=str(log_path.relative_to(self.run_dir.path)),
            stack_path=str(stack_path.relative_to(self.run_dir.path))
            if stack_path.exists()
            else None,
        )


def _rank_state(view: RankView, verdict: Verdict) -> RankState:
    if verdict.cause is not None and view.rank == verdict.cause.rank:
        return "cause"
    if view.rank in verdict.victims:
        return "victim"
    if view.exited_after_stop or not view.exited:
        return "killed"
    return "ok" if view.returncode == 0 else "victim"


def _as_processes(stats: Iterable[ProcStat], rank_pids: Mapping[int, int]) -> tuple[Process, ...]:
    """Name processes; a rank leads its own session, so the session tells whose they were."""
    return tuple(
        Process(stat.pid, stat.name, rank_pids.get(stat.session), stat.state) for stat in stats
    )


def _unkillable(outcome: Outcome) -> Outcome:
    names = ", ".join(f"{process.pid} ({process.name})" for process in outcome.leftovers)
    cause = outcome.cause or Cause("agent-lost", "")
    cause = replace(cause, detail={**cause.detail, "survived": names})
    return replace(outcome, kind="launch-failed", exit_code=73, cause=cause)
