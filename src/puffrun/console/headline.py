"""The first sentence of a card: what happened, to whom."""

import signal
from collections.abc import Callable
from typing import Any

from puffrun.console.facts import RunFacts
from puffrun.console.text import clean_line, render_count, render_limit, render_ranks
from puffrun.outcome import Cause, Outcome
from puffrun.report import signal_name

_LIKELY = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error, often a full /dev/shm",
    signal.SIGFPE: "arithmetic error in native code",
    signal.SIGILL: "illegal instruction, often a binary built for another CPU",
    signal.SIGABRT: "abort() in native code",
    signal.SIGKILL: "not by puffrun",
    signal.SIGTERM: "not by puffrun",
}


def render_headline(outcome: Outcome, facts: RunFacts) -> list[str]:
    """Return the sentence, then further lines of the message if it has some; all cleaned."""
    cause = outcome.cause
    if cause is None:
        return [_headline_without_cause(outcome)]
    first, *rest = [clean_line(line) for line in cause.summary.strip().split("\n")]
    compose = _COMPOSERS.get(cause.kind, _compose_other)
    sentence = first if _is_whole(first, cause) else compose(first, outcome, cause, facts)
    return [sentence, *rest]


def _headline_without_cause(outcome: Outcome) -> str:
    if outcome.leftovers:
        survivors = render_count(len(outcome.leftovers), "process", "processes")
        return f"the run is over, but {survivors} survived SIGKILL"
    return f"the run ended as `{outcome.kind}`, exit code {outcome.exit_code}"


def _is_whole(summary: str, cause: Cause) -> bool:
    """Say whether a summary is a sentence that names its subject itself."""
    if cause.kind == "oom" and "memory" not in summary:
        return False
    if cause.rank is not None:
        return summary.startswith(f"rank {cause.rank} ")
    return summary.startswith(("hang:", "artifact ", "torchrun", "node ", "stopped ", "the time"))


def _name_rank(cause: Cause, facts: RunFacts) -> str:
    if cause.rank is None:
        return "a rank"
    on_node = f" on node {cause.node}" if facts.nodes > 1 and cause.node is not None else ""
    return f"rank {cause.rank}{on_node}"


def _join(sentence: str, summary: str) -> str:
    """Add what the summary says beyond the sentence."""
    return f"{sentence}: {summary}" if summary and summary not in sentence else sentence


def _render_end(exit_code: int | None, signum: int | None) -> str:
    """Say how a process ended: `was killed by SIGSEGV (segmentation fault)`, `exited 7`."""
    if signum is None:
        return "ended" if exit_code is None else f"exited {exit_code}"
    likely = f" ({_LIKELY[signal.Signals(signum)]})" if signum in _LIKELY else ""
    return f"was killed by {signal_name(signum)}{likely}"


def _compose_exception(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    return f"{_name_rank(cause, facts)} failed: {summary}"


def _compose_exit(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    end = _render_end(cause.exit_code, cause.signal)
    silent = " without an exception" if cause.kind == "exit" and cause.exit_code else ""
    return _join(f"{_name_rank(cause, facts)} {end}{silent}", summary)


def _compose_oom(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    name = signal_name(cause.signal or signal.SIGKILL)
    sentence = f"{_name_rank(cause, facts)} was killed by {name}: out of memory"
    is_news = "memory" in summary
    return f"{sentence} ({summary})" if is_news else sentence


def _compose_early_exit(summary: str, outcome: Outcome, cause: Cause, facts: RunFacts) -> str:
    others = [r.rank for r in outcome.ranks if r.rank != cause.rank and r.state != "ok"]
    who = f"{render_ranks(others)} still ran" if others else "others still ran"
    limit = facts.exit_timeout_s
    waited = f"; no end of it in {render_limit(limit)} (--exit-timeout)" if limit else ""
    code = 0 if cause.exit_code is None else cause.exit_code
    return _join(f"{_name_rank(cause, facts)} exited {code} while {who}{waited}", summary)


def _compose_dead_child(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    child: dict[str, Any] = cause.detail.get("child") or {}
    if not child:
        return _join(f"{_name_rank(cause, facts)} waits for a child process that is dead", summary)
    who = f"{child.get('name', 'a process')} (pid {child.get('pid')})"
    end = _render_end(child.get("exit_code"), child.get("signal")).replace(" (not by puffrun)", "")
    return f"{_name_rank(cause, facts)} runs on without its child process {who}, which {end}"


def _compose_stall(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    stalled_s = cause.detail.get("stall_s") or facts.stall_timeout_s
    return _join(f"hang: no rank moved for {render_limit(stalled_s)}", summary)


def _compose_disagreement(summary: str, _: Outcome, __: Cause, ___: RunFacts) -> str:
    return f"ranks disagree: {summary.removeprefix('DisagreementError: ')}"


def _compose_timeout(summary: str, _: Outcome, __: Cause, facts: RunFacts) -> str:
    limit = f" of {render_limit(facts.timeout_s)}" if facts.timeout_s else ""
    return _join(f"the time limit{limit} ran out (--timeout)", summary)


def _compose_stop(_: str, outcome: Outcome, cause: Cause, __: RunFacts) -> str:
    name = signal_name(cause.signal or outcome.exit_code - 128)
    return "stopped by Ctrl-C (SIGINT)" if name == "SIGINT" else f"stopped by {name}"


def _compose_agent_lost(summary: str, outcome: Outcome, cause: Cause, facts: RunFacts) -> str:
    if outcome.kind == "launch-failed" and summary:
        return f"torchrun could not be started: {summary}"
    end = _render_end(cause.exit_code, cause.signal)
    where = f" on node {cause.node}" if facts.nodes > 1 and cause.node is not None else ""
    return _join(f"torchrun's agent{where} {end} before its ranks", summary)


def _compose_other(summary: str, _: Outcome, cause: Cause, __: RunFacts) -> str:
    prefix = {"build": "an artifact could not be built", "node-lost": f"node {cause.node} was lost"}
    return _join(prefix.get(cause.kind, cause.kind), summary)


_COMPOSERS: dict[str, Callable[[str, Outcome, Cause, RunFacts], str]] = {
    "exception": _compose_exception,
    "exit": _compose_exit,
    "signal": _compose_exit,
    "oom": _compose_oom,
    "early-exit": _compose_early_exit,
    "dead-child": _compose_dead_child,
    "stall": _compose_stall,
    "disagreement": _compose_disagreement,
    "timeout": _compose_timeout,
    "stop": _compose_stop,
    "agent-lost": _compose_agent_lost,
}
