"""`launch(plan)`: artifacts, ranks, the end, the report; every path leads to one `Outcome`."""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from puffrun import diagnose
from puffrun.artifacts import (
    ArtifactsFailedError,
    ArtifactsLockedError,
    BuildOptions,
    ensure_artifacts,
    release_artifacts,
)
from puffrun.config import RunConfig
from puffrun.errors import LaunchError, PuffrunError, StoppedError
from puffrun.launch.attempt import Attempt
from puffrun.launch.events import EventLog
from puffrun.launch.listener import LaunchListener
from puffrun.launch.session import Session, start_session
from puffrun.launch.signals import SignalInbox
from puffrun.outcome import (
    ArtifactResult,
    Cause,
    Outcome,
    Process,
    RankResult,
    RankState,
)
from puffrun.plan import LaunchPlan, create_run_dir, plan_as_json
from puffrun.process import GuardedExit, ProcStat
from puffrun.report import write_report
from puffrun.rundir import RunDir, artifact_env_name
from puffrun.watch import RankView, Verdict, conclude

CHECKPOINT_LINE = re.compile(r"^checkpoint (\S+)$", re.MULTILINE)


@dataclass
class Launch:
    """One run from its directory to its report."""

    plan: LaunchPlan
    config: RunConfig
    environ: Mapping[str, str]
    listener: LaunchListener
    inbox: SignalInbox
    run_dir: RunDir
    events: EventLog
    wake_fd: int
    started_at: int
    artifacts: tuple[ArtifactResult, ...] = ()

    def run(self) -> Outcome:
        """Build what is stale while the agent starts, let the ranks go, watch them to the end."""
        session = start_session(self.plan, self.run_dir, attempt=0)
        try:
            self.artifacts = self._build()
        except (ArtifactsFailedError, ArtifactsLockedError) as error:
            self.artifacts = error.results
            return self._end_early(session, _build_verdict(error))
        except StoppedError as error:
            return self._end_early(session, _stop_verdict(error.signum))
        except PuffrunError:
            self._end_early(session, None)
            raise
        return self._watch(session)

    def _build(self) -> tuple[ArtifactResult, ...]:
        names = tuple(spec.name for spec in self.plan.artifacts)
        if not names:
            return ()
        return ensure_artifacts(
            self.config,
            names,
            env=self.environ,
            run_id=self.plan.run_id,
            options=BuildOptions(record_use=True),
            emit=self.listener.artifact_event,
            stop=self.inbox.stop,
        )

    def _watch(self, session: Session) -> Outcome:
        attempt = Attempt(
            plan=self.plan,
            run_dir=self.run_dir,
            session=session,
            inbox=self.inbox,
            events=self.events,
            listener=self.listener,
            wake_fd=self.wake_fd,
        )
        session.go({artifact_env_name(a.name): a.dir for a in self.artifacts if a.dir is not None})
        self.listener.ranks_starting(0, self.plan.world_size)
        attempt.run()
        return self._conclude(attempt, conclude(attempt.state))

    def _end_early(self, session: Session, verdict: Verdict | None) -> Outcome:
        """End an agent that has no ranks yet."""
        session.guarded.kill()
        ended = session.guarded.wait(self.plan.grace_s + 30.0)
        session.link.close()
        outcome = self._outcome(verdict or Verdict("launch-failed", 73, None))
        return replace(outcome, leftovers=_as_processes(ended.leftovers if ended else (), {}))

    def _outcome(self, verdict: Verdict) -> Outcome:
        return Outcome(
            run_id=self.plan.run_id,
            kind=verdict.kind,
            exit_code=verdict.exit_code,
            started_at=self.started_at,
            ended_at=time.time_ns(),
            cause=verdict.cause,
            victims=verdict.victims,
            artifacts=self.artifacts,
        )

    def _conclude(self, attempt: Attempt, verdict: Verdict) -> Outcome:
        views = attempt.state.ranks
        ranks = range(self.plan.world_size)
        ended = attempt.ended or GuardedExit(None)
        rank_pids = {view.pid: rank for rank, view in views.items()}
        strangers = [s for s in ended.cleaned if s.pid not in rank_pids]
        outcome = replace(
            self._outcome(self._with_evidence(verdict, attempt)),
            ranks=tuple(self._rank_result(rank, views.get(rank), verdict) for rank in ranks),
            cleaned=_as_processes(strangers, rank_pids),
            leftovers=_as_processes(ended.leftovers, rank_pids),
        )
        return _unkillable(outcome) if outcome.leftovers else outcome

    def _with_evidence(self, verdict: Verdict, attempt: Attempt) -> Verdict:
        """Add what only the files of the run know: the whole log, the agent's last words."""
        cause = verdict.cause
        if cause is None:
            return verdict
        detail: dict[str, Any] = dict(cause.detail)
        tail = cause.log_tail
        if cause.rank is not None:
            tail = diagnose.read_log_tail(self.run_dir.log_path(cause.rank))
        elif cause.kind == "agent-lost":
            tail = diagnose.read_log_tail(self.run_dir.agent_log_path)
        checkpoint = self._find_checkpoint(attempt)
        if checkpoint:
            detail["checkpoint"] = checkpoint
        return replace(verdict, cause=replace(cause, log_tail=tail, detail=detail))

    def _find_checkpoint(self, attempt: Attempt) -> str | None:
        """Find the last checkpoint that the program named: a line `checkpoint PATH`."""
        for rank in sorted(attempt.state.ranks):
            tail = "\n".join(diagnose.read_log_tail(self.run_dir.log_path(rank), 1000))
            named = CHECKPOINT_LINE.findall(tail)
            if named:
                return str(named[-1])
        return None

    def _rank_result(self, rank: int, view: RankView | None, verdict: Verdict) -> RankResult:
        if view is None:  # the run ended before this rank was started
            node, local_rank = divmod(rank, self.plan.ranks_per_node)
            return RankResult(rank, local_rank, node, "killed")
        returncode = view.returncode
        log_path = self.run_dir.log_path(view.rank)
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
            last_progress=log_path.stat().st_mtime_ns if log_path.exists() else None,
            log_path=str(log_path.relative_to(self.run_dir.path)),
        )


def launch(
    plan: LaunchPlan,
    config: RunConfig,
    environ: Mapping[str, str],
    listener: LaunchListener,
    inbox: SignalInbox,
) -> Outcome:
    """Carry a plan out and write its report; the exit code is `Outcome.exit_code`.

    Raises:
        UsageError: the run directory cannot be made.
        PuffrunError: puffrun could not do its job before any rank existed.
    """
    started_at = time.time_ns()
    run_dir = create_run_dir(plan)
    events = EventLog(run_dir.events_path, plan.node_rank)
    wake_fd = _open_wake(run_dir)
    events.write("run-started", run_id=plan.run_id, argv=list(plan.argv))
    listener.run_started(plan)
    try:
        run = Launch(plan, config, environ, listener, inbox, run_dir, events, wake_fd, started_at)
        outcome = _run_guarded(run)
        write_report(run_dir, outcome, plan_as_json(plan))
        events.write("run-ended", outcome=outcome.kind, exit_code=outcome.exit_code)
    finally:
        release_artifacts(plan.state_dir, plan.run_id)
        os.close(wake_fd)
        events.close()
    listener.ended(outcome, plan)
    return outcome


def _run_guarded(run: Launch) -> Outcome:
    """A launch that fails before there is anything to watch has a report too."""
    try:
        return run.run()
    except LaunchError as error:
        cause = Cause("agent-lost", error.message, detail={"hint": error.hint})
        return run._outcome(Verdict("launch-failed", error.exit_code, cause))  # noqa: SLF001  # same module


def _open_wake(run_dir: RunDir) -> int:
    """Open the FIFO that ranks wake us with; where there can be none, the ticks have to do."""
    try:
        os.mkfifo(run_dir.wake_path, 0o600)
        return os.open(run_dir.wake_path, os.O_RDWR | os.O_NONBLOCK)
    except OSError:
        return os.eventfd(0, os.EFD_NONBLOCK)


def _build_verdict(error: ArtifactsFailedError | ArtifactsLockedError) -> Verdict:
    cause = Cause("build", error.message, detail={"hint": error.hint} if error.hint else {})
    return Verdict("artifact-failed", error.exit_code, cause)


def _stop_verdict(signum: int) -> Verdict:
    return Verdict("stopped", 128 + signum, Cause("stop", "stopped while building", signal=signum))


def _rank_state(view: RankView, verdict: Verdict) -> RankState:
    if verdict.cause is not None and view.rank == verdict.cause.rank:
        return "cause"
    if view.rank in verdict.victims:
        return "victim"
    if view.exited_after_stop or not view.exited:
        return "killed"
    return "ok" if view.returncode == 0 else "victim"


def _as_processes(
    stats: tuple[ProcStat, ...] | list[ProcStat], rank_pids: Mapping[int, int]
) -> tuple[Process, ...]:
    """Name processes; a rank leads its own session, so the session tells whose they were."""
    return tuple(
        Process(stat.pid, stat.name, rank_pids.get(stat.session), stat.state) for stat in stats
    )


def _unkillable(outcome: Outcome) -> Outcome:
    names = ", ".join(f"{process.pid} ({process.name})" for process in outcome.leftovers)
    cause = outcome.cause or Cause("agent-lost", "")
    cause = replace(cause, detail={**cause.detail, "survived": names})
    return replace(outcome, kind="launch-failed", exit_code=73, cause=cause)
