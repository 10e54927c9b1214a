"""`launch(plan)`: artifacts, ranks, the end, the report; every path leads to one `Outcome`."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace

from puffrun.artifacts import (
    ArtifactsFailedError,
    ArtifactsLockedError,
    BuildOptions,
    ensure_artifacts,
    find_process_start,
    release_artifacts,
)
from puffrun.config import RunConfig
from puffrun.errors import LaunchError, PuffrunError, StoppedError
from puffrun.hands import Session, start_session
from puffrun.launch.attempt import Attempt
from puffrun.launch.conclusion import Conclusion
from puffrun.launch.event_log import EventLog
from puffrun.launch.launch_listener import LaunchListener
from puffrun.launch.signal_inbox import PAUSING, SignalInbox
from puffrun.outcome import ArtifactResult, Cause, Outcome
from puffrun.plan import LaunchPlan, create_run_dir, plan_as_json
from puffrun.report import write_report
from puffrun.rundir import RunDir, artifact_env_name
from puffrun.watch import AttemptResult, GiveUp, Verdict, decide_restart

END_TIMEOUT_S = 30.0  # for a guardian to end an agent that has no ranks yet


@dataclass
class Launch:
    """One run from its artifacts to its outcome."""

    plan: LaunchPlan
    config: RunConfig
    environ: Mapping[str, str]
    listener: LaunchListener
    inbox: SignalInbox
    run_dir: RunDir
    events: EventLog
    wake_fd: int
    conclusion: Conclusion
    started_s: float = field(default_factory=time.monotonic)
    attempts: list[AttemptResult] = field(default_factory=list)

    def run(self) -> Outcome:
        """Build what is stale while the agent starts, let the ranks go, watch them to the end."""
        session = start_session(self.plan, self.run_dir, attempt=0)
        try:
            artifacts = self._build()
        except (ArtifactsFailedError, ArtifactsLockedError) as error:
            self.conclusion = replace(self.conclusion, artifacts=error.results)
            return self._end_early(session, _build_verdict(error))
        except StoppedError as error:
            return self._end_early(session, _stop_verdict(error.signum))
        except PuffrunError as error:
            self._end_early(session, Verdict("launch-failed", error.exit_code, None))
            raise
        self.conclusion = replace(self.conclusion, artifacts=artifacts)
        return self._run_attempts(session)

    def _build(self) -> tuple[ArtifactResult, ...]:
        names = tuple(spec.name for spec in self.plan.artifacts)
        if not names:
            return ()
        return ensure_artifacts(
            self.config,
            names,
            env=self.environ,
            run_id=self.plan.run_id,
            options=BuildOptions(record_use=True, asked_at=find_process_start()),
            emit=self.listener.artifact_event,
            stop=self.inbox.stop,
        )

    def _end_early(self, session: Session, verdict: Verdict) -> Outcome:
        """End an agent that has no ranks yet."""
        session.guarded.kill()
        ended = session.guarded.wait(END_TIMEOUT_S)
        if ended is None:
            session.guarded.replace()
            ended = session.guarded.wait(END_TIMEOUT_S)
        session.link.close()
        return self.conclusion.without_ranks(verdict, ended.leftovers if ended else ())

    def _run_attempts(self, session: Session) -> Outcome:
        """Run the ranks, again after a failure where that was asked for and gets anywhere."""
        while True:
            outcome = self._run_attempt(session)
            decision = decide_restart(self.attempts, self.plan.max_restarts)
            if isinstance(decision, GiveUp):
                if decision.reason and self.plan.max_restarts:
                    self.listener.note(f"not restarted: {decision.reason}")
                return self._with_attempts(outcome)
            self._announce_restart(outcome, decision.delay_s)
            if self.inbox.stop.wait(decision.delay_s):
                signum = self.inbox.stop.signum or 0
                verdict = _stop_verdict(signum, "before the ranks were started again")
                return self._with_attempts(self.conclusion.without_ranks(verdict))
            session = self._restart_session()

    def _run_attempt(self, session: Session) -> Outcome:
        started_at = time.time_ns()
        attempt = Attempt(
            plan=self.plan,
            run_dir=self.run_dir,
            session=session,
            inbox=self.inbox,
            events=self.events,
            listener=self.listener,
            wake_fd=self.wake_fd,
            started_s=self.started_s,
        )
        self.inbox.drop_forwarded()
        session.go(self._rank_env())
        self.listener.ranks_starting(0, self.plan.world_size)
        with self.inbox.catching(PAUSING):
            attempt.run()
        outcome, found = self.conclusion.of_attempt(attempt)
        self.attempts.append(
            AttemptResult(
                attempt=session.attempt,
                kind=outcome.kind,
                exit_code=outcome.exit_code,
                started_at=started_at,
                ended_at=time.time_ns(),
                cause=outcome.cause,
                checkpoint=found.checkpoint,
                step=found.step,
            )
        )
        return outcome

    def _rank_env(self) -> dict[str, str]:
        artifacts = self.conclusion.artifacts
        return {artifact_env_name(a.name): a.dir for a in artifacts if a.dir is not None}

    def _announce_restart(self, outcome: Outcome, delay_s: float) -> None:
        done = len(self.attempts)
        why = outcome.cause.summary.partition("\n")[0] if outcome.cause else outcome.kind
        rank = outcome.cause.rank if outcome.cause else None
        who = "" if rank is None else f"rank {rank}: "
        self.listener.note(
            f"attempt {done} failed: {who}{why}; "
            f"restart {done} of {self.plan.max_restarts} in {delay_s:g} s"
        )
        self.events.write("restart", attempt=done, delay_s=delay_s)

    def _restart_session(self) -> Session:
        for rank in range(self.plan.world_size):
            path = self.run_dir.error_path(rank)
            with suppress(FileNotFoundError):  # kept, under the name of its attempt
                path.rename(path.with_suffix(f".attempt-{len(self.attempts)}.json"))
        return start_session(self.plan, self.run_dir, attempt=len(self.attempts))

    def _with_attempts(self, outcome: Outcome) -> Outcome:
        if len(self.attempts) < 2:  # noqa: PLR2004  # a single attempt is the run itself
            return outcome
        told = []
        for result in self.attempts:
            fields = asdict(result) | {"attempt": result.attempt + 1}  # as it was announced
            cause = fields.pop("cause") or {}
            fields["summary"] = cause.get("summary", result.kind)
            fields["cause"] = {key: cause.get(key) for key in ("kind", "rank", "summary")}
            told.append(fields)
        return replace(outcome, attempts=tuple(told))


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
    conclusion = Conclusion(plan, create_run_dir(plan), time.time_ns())
    run_dir = conclusion.run_dir
    events = EventLog(run_dir.events_path, plan.node_rank)
    wake_fd = _open_wake(run_dir)
    events.write("run-started", run_id=plan.run_id, argv=list(plan.argv))
    listener.run_started(plan)
    try:
        outcome = _run_or_explain(
            Launch(plan, config, environ, listener, inbox, run_dir, events, wake_fd, conclusion)
        )
        try:
            write_report(run_dir, outcome, plan_as_json(plan))
        except OSError as error:  # a full disk, `rm -r`: the run has ended as it has
            listener.note(f"cannot write {run_dir.report_path}: {error.strerror}")
        events.write("run-ended", outcome=outcome.kind, exit_code=outcome.exit_code)
    finally:
        release_artifacts(plan.state_dir, plan.run_id)
        os.close(wake_fd)
        events.close()
    listener.ended(outcome, plan)
    return outcome


def _run_or_explain(run: Launch) -> Outcome:
    """A launch that fails before there is anything to watch has a report too."""
    try:
        return run.run()
    except LaunchError as error:
        cause = Cause("agent-lost", error.message, detail={"hint": error.hint})
        return run.conclusion.without_ranks(Verdict("launch-failed", error.exit_code, cause))


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


def _stop_verdict(signum: int, when: str = "before any rank was started") -> Verdict:
    cause = Cause("stop", f"stopped {when}", signal=signum)
    return Verdict("stopped", 128 + signum, cause)
