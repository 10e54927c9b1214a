"""The verdict on a smoke run: one function a question. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from puffrun.errors import ExitCode
from puffrun.naming import name_ranks
from puffrun.outcome import Cause, Outcome, Process
from puffrun.smoke.run_signs import Evidence, RankEvidence
from puffrun.smoke.smoke_findings import ENV_MAX_STEPS, RED, Check, Finding, SmokeResult

_PLACE = re.compile(r"(\S+\.py):(\d+)\b")
_WENT_THROUGH = "success"


@dataclass(frozen=True)
class Rules:
    """What the run was asked to do. `needs_progress`: ranks must show that they trained."""

    max_steps: int
    timeout_s: float
    needs_progress: bool = True
    ran_out_early: bool = False  # the time limit came before there was any rank
    cwd: Path = Path()  # of the ranks: what a place such as `train.py:88` is relative to
    build_command: str = "puffrun build-artifacts"  # with the config that was asked for


def judge_run(outcome: Outcome, evidence: Evidence, rules: Rules, run_dir: str) -> SmokeResult:
    """Judge a run: its own end first, then what a run that went through may still have wrong."""
    checks = (
        _judge_artifacts(outcome, evidence, rules),
        _judge_agreement(outcome, rules),
        _judge_ranks(outcome, rules),
        _judge_training(outcome, evidence, rules),
        _judge_leftovers(outcome),
        _judge_output(outcome, evidence),
    )
    code = int(ExitCode.TIMEOUT) if rules.ran_out_early else outcome.exit_code
    if code == 0 and not all(check.green for check in checks):
        code = RED
    return SmokeResult(code, outcome.duration_s, checks, outcome.run_id, run_dir)


def _judge_artifacts(outcome: Outcome, evidence: Evidence, rules: Rules) -> Check:
    errors = dict(evidence.build_errors)
    findings = []
    for artifact in outcome.artifacts:
        if artifact.state == "failed":
            error = errors.get(artifact.name)
            findings.append(
                Finding(
                    f"artifact `{artifact.name}` could not be built",
                    error.text if error else artifact.reason,
                    error.path if error else None,
                    error.line if error else None,
                    hint=f"`{rules.build_command} {artifact.name}` shows it again",
                )
            )
    if outcome.kind == "artifact-failed" and not findings:
        summary = outcome.cause.summary if outcome.cause else "it could not be had"
        findings.append(Finding("an artifact is missing", summary))
    states = [artifact.state for artifact in outcome.artifacts]
    said = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return Check("artifacts", f"artifacts: {said or 'none needed'}", tuple(findings))


def _judge_agreement(outcome: Outcome, rules: Rules) -> Check:
    cause = outcome.cause
    if not _disagrees(outcome) or cause is None:
        asked = outcome.kind == _WENT_THROUGH
        return Check("agreement", "no disagreement" if asked else "not reached", asked=asked)
    finding = _explain("the ranks disagree", outcome, cause, rules)
    return Check("agreement", "the ranks disagree", (finding,))


def _disagrees(outcome: Outcome) -> bool:
    cause = outcome.cause
    is_named = cause is not None and cause.kind == "disagreement"
    return outcome.kind == "disagreed" or is_named or outcome.exit_code == ExitCode.DISAGREED


def _judge_ranks(outcome: Outcome, rules: Rules) -> Check:
    """Ask whether every rank came to its own good end."""
    count = len(outcome.ranks)
    if outcome.kind == _WENT_THROUGH:
        return Check("ranks", f"{count} ranks exited 0")
    if outcome.kind == "artifact-failed" or _disagrees(outcome):
        return Check("ranks", "not reached", asked=False)
    cause = outcome.cause or Cause("stop", outcome.kind)
    if rules.ran_out_early:
        finding = Finding(
            f"time limit: {rules.timeout_s:g} s ran out before there was any rank",
            "the artifacts took that long",
            hint=f"`{rules.build_command}` in a step before it, or a longer `--timeout`",
        )
    else:
        finding = _explain(_word_title(outcome, cause), outcome, cause, rules)
    return Check("ranks", outcome.kind, (finding,))


def _word_title(outcome: Outcome, cause: Cause) -> str:
    who = f"rank {cause.rank}" if cause.rank is not None else "the run"
    first = cause.summary.partition("\n")[0]
    if outcome.kind == "hung":
        return "hang: " + (first.removeprefix("hang: ") or "the ranks stopped moving")
    if outcome.kind == "timeout":
        return "time limit: the program did not end by itself"
    if outcome.kind == "stopped":
        return "stopped before the end"
    return f"{who} failed: {first}" if first else f"{who} failed"


def _explain(title: str, outcome: Outcome, cause: Cause, rules: Rules) -> Finding:
    """Make the finding of a run that ended badly; a hang's place is where somebody is missing."""
    if outcome.kind not in ("hung", "timeout") or outcome.hang is None:
        return Finding(title, cause.summary, frames=cause.frames)
    path, line = _find_hang_place(outcome, rules.cwd)
    return Finding(title, outcome.hang.text or cause.summary, path, line, frames=cause.frames)


def _find_hang_place(outcome: Outcome, cwd: Path) -> tuple[str | None, int | None]:
    if outcome.hang is None:
        return None, None
    places = [m.at for m in outcome.hang.missing] + [w.at for w in outcome.hang.waiting]
    for place in places:
        found = _PLACE.search(place)
        if found:
            return str(cwd / found[1]), int(found[2])
    return None, None


def _judge_training(outcome: Outcome, evidence: Evidence, rules: Rules) -> Check:
    """Ask whether the ranks did anything: `progress()`, or output and an end of their own."""
    if outcome.kind not in (_WENT_THROUGH, "timeout", "hung"):
        return Check("training", "not reached", asked=False)
    beating = [rank for rank in evidence.ranks if rank.calls]
    text = _describe_training(beating, evidence)
    if not rules.needs_progress:
        return Check("training", text)
    finding = _find_no_progress(outcome, beating, evidence, rules)
    return Check("training", text, () if finding is None else (finding,))


def _describe_training(beating: list[RankEvidence], evidence: Evidence) -> str:
    if not beating:
        return f"no rank of {len(evidence.ranks)} called progress()"
    steps = {rank.step for rank in beating}
    reached = f"step {max(step for step in steps if step is not None)}" if any(steps) else "step 0"
    return f"{len(beating)} of {len(evidence.ranks)} ranks made progress, to {reached}"


def _find_no_progress(
    outcome: Outcome, beating: list[RankEvidence], evidence: Evidence, rules: Rules
) -> Finding | None:
    """A program that never calls `progress()` shows with its output and its own end that it ran."""
    idle = [rank.rank for rank in evidence.ranks if not rank.calls]
    if beating and idle and outcome.kind == _WENT_THROUGH:
        return Finding(
            f"no progress: {name_ranks(idle)} never called progress(), other ranks did",
            "a rank that does not train drops out of the work, or waits without being noticed",
            hint="call `puffrun.progress(step)` on every rank",
        )
    if beating:
        return _find_ignored_limit(outcome, beating, rules)
    if outcome.kind == _WENT_THROUGH and any(rank.printed_bytes for rank in evidence.ranks):
        return None
    how = "every rank exited 0" if outcome.kind == _WENT_THROUGH else f"in {rules.timeout_s:g} s"
    if outcome.kind == "hung":
        how = "the ranks stood still"
    return Finding(
        f"no progress: {how}, and no rank called progress()",
        "nothing shows that a single step was trained",
        hint="call `puffrun.progress(step)` in the training loop, or say `--no-progress-check`",
    )


def _find_ignored_limit(
    outcome: Outcome, beating: list[RankEvidence], rules: Rules
) -> Finding | None:
    """Say so when the program trained on because it does not read the step limit."""
    most = max(rank.calls for rank in beating)
    if outcome.kind != "timeout" or most <= rules.max_steps:
        return None
    return Finding(
        f"the step limit was ignored: {most} calls of progress(), {rules.max_steps} were asked for",
        "a smoke run ends when the program does",
        hint=f'read `os.environ["{ENV_MAX_STEPS}"]` in the program, or pass it a limit in ARGS',
    )


def _judge_leftovers(outcome: Outcome) -> Check:
    findings = []
    if outcome.leftovers:
        findings.append(
            Finding(
                f"leftover: {_name_processes(outcome.leftovers)} survived SIGKILL",
                "processes in uninterruptible sleep; the node may need a look",
            )
        )
    if outcome.kind == _WENT_THROUGH and outcome.cleaned:
        findings.append(
            Finding(
                f"leftover: {_name_processes(outcome.cleaned)} still ran after the ranks' end",
                "the program does not end what it starts; puffrun ended it",
                hint="join or terminate child processes before the program returns",
            )
        )
    asked = bool(findings) or outcome.kind == _WENT_THROUGH
    return Check("leftovers", "nothing left" if asked else "not reached", tuple(findings), asked)


def _name_processes(processes: Iterable[Process]) -> str:
    listed = [
        f"{process.name} (pid {process.pid}"
        + (f", rank {process.rank})" if process.rank is not None else ")")
        for process in processes
    ]
    more = len(listed) - 3
    return ", ".join(listed[:3]) + (f" and {more} more" if more > 0 else "")


def _judge_output(outcome: Outcome, evidence: Evidence) -> Check:
    if outcome.kind != _WENT_THROUGH:
        return Check("output", "not reached", asked=False)
    findings = tuple(
        Finding(
            f"suspicious output of rank {seen.rank}: {seen.why}",
            f"line {seen.line} of its log{_count_more(seen.more)}: {seen.text}",
            hint="`--allow REGEX` for a line that is harmless",
        )
        for rank in evidence.ranks
        for seen in rank.suspicions
    )
    return Check("output", "nothing suspicious", findings)


def _count_more(more: int) -> str:
    return f", and {more} more" if more else ""
