"""From a watched attempt to an `Outcome`: what the files of the run add to the verdict."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from puffrun.hands import NodeFindings, RankFindings, RankTraces, as_processes
from puffrun.launch.attempt import Attempt
from puffrun.launch.attempt_hang import find_hang
from puffrun.outcome import ArtifactResult, Cause, Hang, Outcome, RankResult, RankState
from puffrun.plan import LaunchPlan
from puffrun.process import ProcStat
from puffrun.rundir import RunDir
from puffrun.watch import RankView, Verdict, add_late_victims, blame_missing, conclude


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
            leftovers=as_processes(leftovers, {}),
        )
        return _unkillable(outcome) if outcome.leftovers else outcome

    def of_attempt(self, attempt: Attempt) -> tuple[Outcome, NodeFindings]:
        """Make the outcome of an attempt that has ended, and tell what it has left."""
        errors = attempt.hands.read_errors()
        verdict = conclude(attempt.state)
        verdict = add_late_victims(verdict, attempt.state, errors, attempt.stopped_at)
        hang = find_hang(attempt.state, attempt.evidence, self.plan, errors)
        verdict = blame_missing(verdict, attempt.state, hang)
        verdict = _name_culprit(verdict, hang, attempt.state.ranks)
        found = attempt.hands.find_traces()
        if verdict.cause is not None:
            about = attempt.hands.find_about(verdict.cause)
            verdict = replace(verdict, cause=_with_findings(verdict.cause, about, found))
        outcome = replace(
            self.without_ranks(verdict),
            hang=hang,
            waiting=attempt.lateness.as_dict() if attempt.lateness.collectives else None,
            ranks=tuple(
                self._rank_result(rank, attempt.state.ranks.get(rank), verdict, found)
                for rank in range(self.plan.world_size)
            ),
            cleaned=found.cleaned,
            leftovers=found.leftovers,
        )
        return (_unkillable(outcome) if outcome.leftovers else outcome), found

    def _rank_result(
        self, rank: int, view: RankView | None, verdict: Verdict, found: NodeFindings
    ) -> RankResult:
        if view is None:  # the run ended before this rank was started
            node, local_rank = divmod(rank, self.plan.ranks_per_node)
            return RankResult(rank, local_rank, node, "killed")
        returncode = view.returncode
        traces = found.ranks.get(rank) or RankTraces(rank)
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
            last_progress=traces.last_progress,
            log_path=traces.log_path,
            stack_path=traces.stack_path,
        )


def _name_culprit(verdict: Verdict, hang: Hang | None, views: Mapping[int, RankView]) -> Verdict:
    """Let a stall be about the one rank that the others waited for, if there is one."""
    cause = verdict.cause
    if cause is None or cause.kind != "stall" or cause.rank is not None or hang is None:
        return verdict
    if len(hang.culprits) != 1:
        return verdict
    rank = hang.culprits[0]
    node = views[rank].node if rank in views else None
    return replace(verdict, cause=replace(cause, rank=rank, node=node))


def _with_findings(cause: Cause, about: RankFindings, found: NodeFindings) -> Cause:
    """Add what only the files of the run know: the whole log, the agent's last words."""
    detail: dict[str, Any] = dict(cause.detail)
    if about.not_recorded is not None:
        detail["not_recorded"] = about.not_recorded
    if found.checkpoint is not None:
        detail |= {"checkpoint": found.checkpoint, "checkpoint_at": found.checkpoint_at}
    return replace(cause, log_tail=about.log_tail, frames=about.frames, detail=detail)


def _rank_state(view: RankView, verdict: Verdict) -> RankState:
    if verdict.cause is not None and view.rank == verdict.cause.rank:
        return "cause"
    if view.rank in verdict.victims:
        return "victim"
    if view.exited_after_stop or not view.exited:
        return "killed"
    return "ok" if view.returncode == 0 else "victim"


def _unkillable(outcome: Outcome) -> Outcome:
    names = ", ".join(f"{process.pid} ({process.name})" for process in outcome.leftovers)
    cause = outcome.cause or Cause("agent-lost", "")
    cause = replace(cause, detail={**cause.detail, "survived": names})
    return replace(outcome, kind="launch-failed", exit_code=73, cause=cause)
