"""The first sentence of a card: what happened, to whom."""

import signal
from collections.abc import Callable

from puffrun.console.card.plan_facts import RunFacts
from puffrun.console.text import clean_line, render_count, render_limit
from puffrun.naming import name_ranks, signal_name
from puffrun.outcome import Cause, Outcome

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
    if cause is None or (outcome.leftovers and not cause.summary):
        return [_headline_without_cause(outcome)]
    first, *rest = _read_message(cause.summary)
    if cause.rank is not None and first.startswith(f"rank {cause.rank} "):
        return [first, *rest]
    compose = _COMPOSERS.get(cause.kind, _compose_other)
    return [compose(first, outcome, cause, facts), *rest]


def _read_message(summary: str) -> list[str]:
    """Return the lines of a message; of a traceback in it, the last frame and what was raised.

    A carriage return is a new line here: nothing draws over the start of a message.
    """
    lines: list[str] = []
    is_in_traceback, frame = False, ""
    for line in summary.strip().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line.endswith("Traceback (most recent call last):"):
            is_in_traceback, frame = True, ""
        elif is_in_traceback and (line.startswith(" ") or not line):
            frame = line if line.lstrip().startswith('File "') else frame
        else:
            lines += [frame] if is_in_traceback and frame else []
            lines.append(line)
            is_in_traceback = False
    return [clean_line(line) for line in lines or [summary]]


def _headline_without_cause(outcome: Outcome) -> str:
    if outcome.leftovers:
        survivors = render_count(len(outcome.leftovers), "process", "processes")
        return f"the run is over, but {survivors} survived SIGKILL"
    return f"the run ended as `{outcome.kind}`, exit code {outcome.exit_code}"


def _name_rank(cause: Cause, facts: RunFacts) -> str:
    if cause.rank is None:
        return "a rank"
    on_node = f" on node {cause.node}" if facts.nodes > 1 and cause.node is not None else ""
    return f"rank {cause.rank}{on_node}"


def _join(sentence: str, summary: str) -> str:
    """Add what the summary says beyond the sentence."""
    return f"{sentence}: {summary}" if summary and summary not in sentence else sentence


def _is_predicate(summary: str) -> bool:
    """Say whether a summary is what the rank did: `was killed by …`."""
    return summary.startswith(("was ", "exited ", "aborted "))


def _render_end(exit_code: int | None, signum: int | None) -> str:
    """Say how a process ended: `was killed by SIGSEGV (segmentation fault)`, `exited 7`."""
    if signum is None:
        return "ended" if exit_code is None else f"exited {exit_code}"
    likely = f" ({_LIKELY[signal.Signals(signum)]})" if signum in _LIKELY else ""
    return f"was killed by {signal_name(signum)}{likely}"


def _compose_exception(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    return f"{_name_rank(cause, facts)} failed: {summary}"


def _compose_exit(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    who = _name_rank(cause, facts)
    end = _render_end(cause.exit_code, cause.signal)
    silent = _say_silence(cause) if cause.kind == "exit" and cause.exit_code else ""
    if _is_predicate(summary) and summary not in end:
        return f"{who} {summary}"
    return _join(f"{who} {end}{silent}", summary)


def _say_silence(cause: Cause) -> str:
    """Say that there was no exception, or that nobody can know."""
    why = cause.detail.get("not_recorded")
    if why is None:
        return " without an exception"
    return f", and why could not be recorded: {clean_line(str(why))}"


def _compose_oom(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    who = _name_rank(cause, facts)
    if "memory" in summary and _is_predicate(summary):
        return f"{who} {summary}"
    sentence = f"{who} was killed by {signal_name(cause.signal or signal.SIGKILL)}: out of memory"
    return f"{sentence} ({summary})" if "memory" in summary else sentence


def _compose_early_exit(summary: str, outcome: Outcome, cause: Cause, facts: RunFacts) -> str:
    others = [r.rank for r in outcome.ranks if r.rank != cause.rank and r.state != "ok"]
    who = f"{name_ranks(others) if others else 'others'} {'was' if len(others) == 1 else 'were'}"
    limit = facts.exit_timeout_s
    waited = f", for {render_limit(limit)} (--exit-timeout)" if limit else ""
    end = " and then failed without it" if outcome.victims else waited
    code = 0 if cause.exit_code is None else cause.exit_code
    sentence = f"{_name_rank(cause, facts)} exited {code} while {who} still running{end}"
    return _join(sentence, summary)


def _compose_dead_child(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    return _join(f"{_name_rank(cause, facts)} runs on without a child process that died", summary)


def _compose_stall(summary: str, _: Outcome, cause: Cause, facts: RunFacts) -> str:
    stalled_s = cause.detail.get("stall_s") or facts.stall_timeout_s
    sentence = f"hang: no rank moved for {render_limit(stalled_s)}"
    return summary if summary.startswith("hang:") else _join(sentence, summary)


def _compose_disagreement(summary: str, _: Outcome, __: Cause, ___: RunFacts) -> str:
    return f"ranks disagree: {summary.removeprefix('DisagreementError: ')}"


def _compose_timeout(summary: str, _: Outcome, __: Cause, facts: RunFacts) -> str:
    limit = f" of {render_limit(facts.timeout_s)}" if facts.timeout_s else ""
    return summary or f"the time limit{limit} ran out (--timeout)"


def _compose_stop(summary: str, outcome: Outcome, cause: Cause, __: RunFacts) -> str:
    name = signal_name(cause.signal or outcome.exit_code - 128)
    key = "Ctrl-C (SIGINT)" if name == "SIGINT" else name
    _, during, what = summary.partition(" while ")
    return f"stopped by {key}{during}{what}"


def _compose_agent_lost(summary: str, outcome: Outcome, cause: Cause, facts: RunFacts) -> str:
    if summary and all(rank.pid is None for rank in outcome.ranks) and "torchrun" not in summary:
        return f"torchrun could not be started: {summary}"
    end = _render_end(cause.exit_code, cause.signal)
    where = f" on node {cause.node}" if facts.nodes > 1 and cause.node is not None else ""
    return summary or f"torchrun's agent{where} {end} before its ranks"


def _compose_build(summary: str, _: Outcome, __: Cause, ___: RunFacts) -> str:
    return summary or "an artifact could not be built"


def _compose_other(summary: str, _: Outcome, cause: Cause, __: RunFacts) -> str:
    sentence = f"node {cause.node} was lost" if cause.kind == "node-lost" else cause.kind
    return _join(sentence, summary)


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
    "build": _compose_build,
}
