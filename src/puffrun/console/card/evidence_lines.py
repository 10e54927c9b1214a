"""The middle of a card: what the other ranks were doing, what was killed, what is left."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from puffrun.console.text import clean_line, count_cells, render_count, shorten, wrap
from puffrun.naming import name_ranks
from puffrun.outcome import Cause, Hang, Outcome, Process, RankResult

MAX_GROUPS = 4
_RANK_PREFIX = re.compile(r"^\[rank\d+\]:")  # torch puts it before each line of a traceback
_TIMES = "\N{MULTIPLICATION SIGN}"
_PROCESS_STATES = {"D": "uninterruptible sleep", "T": "stopped", "Z": "zombie"}


def render_others(outcome: Outcome, width: int) -> list[str]:
    """Say in sentences what the ranks beside the cause were doing and how they ended."""
    hang = outcome.hang
    cause = outcome.cause
    culprit = cause.rank if cause else None
    # of a rank that the others missed, where it was is all there is to tell
    is_absent = cause is not None and cause.kind == "disagreement" and not cause.frames
    states = {result.rank: result.state for result in outcome.ranks}
    sentences: list[str] = []
    told: set[int] = set()
    for waiting in hang.waiting if hang else ():
        ranks = [rank for rank in waiting.ranks if rank != culprit]
        if ranks:
            place = f" at {waiting.at}" if waiting.at else ""
            sentences.append(_tell(ranks, f"in {waiting.op}{place}", states))
            told.update(ranks)
    for missing in hang.missing if hang else ():
        ranks = [rank for rank in missing.ranks if is_absent or rank != culprit]
        ranks = [rank for rank in ranks if rank not in told]
        if ranks and missing.at:
            sentences.append(_tell(ranks, f"at {missing.at}", states))
            told.update(ranks)
    if outcome.kind == "stopped":
        return []  # whoever stops a run knows what that does to the ranks
    rest = [r for r in outcome.ranks if r.rank not in told and r.rank != culprit]
    shown = _limit([*sentences, *_tell_states(rest)])
    return [line for sentence in shown for line in wrap(sentence, width)]


def _tell(ranks: list[int], doing: str, states: Mapping[int, str]) -> str:
    was = "was" if len(ranks) == 1 else "were"
    ends = {states.get(rank) for rank in ranks}
    end = _ENDS.get(ends.pop() or "", "") if len(ends) == 1 else ""
    return clean_line(f"{name_ranks(ranks)} {was} {doing}{end}")


_ENDS = {"killed": "; ended by puffrun", "victim": "; failed because of it", "ok": "; exited 0"}
_STATES = {"killed": "ended by puffrun", "victim": "failed because of it", "ok": "exited 0"}


def _tell_states(results: list[RankResult]) -> list[str]:
    """Sum up the ranks of which only the end is known."""
    sentences = []
    for state, verb in _STATES.items():
        ranks = [result.rank for result in results if result.state == state]
        was = ("was " if len(ranks) == 1 else "were ") if state == "killed" else ""
        if ranks:
            sentences.append(f"{name_ranks(ranks)} {was}{verb}")
    return sentences


def _limit(items: list[str]) -> list[str]:
    if len(items) <= MAX_GROUPS:
        return items
    more = len(items) - MAX_GROUPS + 1
    return [*items[: MAX_GROUPS - 1], f"… and {more} more groups of ranks, see the report"]


def render_hang_table(outcome: Outcome, width: int) -> list[str]:
    """Draw who waits where and who is missing, as three columns."""
    return [] if outcome.hang is None else render_hang(outcome.hang, width)


def render_hang(hang: Hang, width: int) -> list[str]:
    """Draw a verdict; its sentence is left out where the rows say it all."""
    rows = [
        (w.ranks, f"wait in {w.op}" if w.ranks[1:] else f"waits in {w.op}", w.at)
        for w in hang.waiting
    ]  # fmt: skip - one row of the table a line
    rows += [(m.ranks, m.doing, m.at) for m in hang.missing]
    if not rows:
        return [clean_line(line) for line in hang.text.split("\n") if line.strip()]
    names = [shorten(name_ranks(ranks), max(width // 3, 18)) for ranks, _, _ in rows]
    cells = [(name, doing, at) for name, (_, doing, at) in zip(names, rows, strict=True)]
    # who is missing stands in the rows; that the ranks disagree does not
    sentence = [] if hang.missing else wrap(clean_line(hang.text), width)
    return [*sentence, *_draw_rows(cells, width)]


def _draw_rows(rows: list[tuple[str, str, str]], width: int) -> list[str]:
    """Align the columns where the width allows it; else the place stands on its own line."""
    name_column = max(count_cells(name) for name, _, _ in rows) + 3
    firsts = [clean_line(doing.split("\n")[0]) for _, doing, _ in rows]
    doing_column = max(map(count_cells, firsts)) + 4
    place_width = max(count_cells(at) for _, _, at in rows)
    is_wide = name_column + doing_column + place_width <= width
    lines: list[str] = []
    for (name, doing, at), first in zip(rows, firsts, strict=True):
        lead = name + " " * (name_column - count_cells(name))
        under = [clean_line(line) for line in doing.split("\n")[1:]]
        place = clean_line(at)
        if is_wide:
            lines.append(
                (lead + first + " " * (doing_column - count_cells(first)) + place).rstrip()
            )
        else:
            lines += wrap(first, width, indent=lead, hanging=" " * name_column)
            under = [place, *under]
        for text in filter(None, under):
            lines += wrap(text, width, indent=" " * name_column, hanging=" " * name_column)
    return lines


def render_cleaned(processes: Iterable[Process], width: int) -> list[str]:
    """Say which processes the ranks left behind, a sentence for each rank."""
    by_rank: dict[int | None, list[Process]] = {}
    for process in processes:
        by_rank.setdefault(process.rank, []).append(process)
    lines: list[str] = []
    for rank, group in sorted(by_rank.items(), key=lambda item: (item[0] is None, item[0] or 0)):
        whose = "of the run" if rank is None else f"of rank {rank}"
        was = "was still alive and was" if len(group) == 1 else "were still alive and were"
        count = render_count(len(group), "process", "processes")
        lines += wrap(f"{count} {whose} {was} killed: {_render_names(group)}", width)
    return lines[:MAX_GROUPS]


def _render_names(processes: list[Process]) -> str:
    counts = Counter(clean_line(process.name) for process in processes)
    return ", ".join(f"{n} {_TIMES} {name}" if n > 1 else name for name, n in counts.most_common(3))


def render_leftovers(processes: Iterable[Process], width: int) -> list[str]:
    """Name each process that survived SIGKILL: somebody has to look after them."""
    lines: list[str] = []
    for process in processes:
        whose = "" if process.rank is None else f" of rank {process.rank}"
        state = _PROCESS_STATES.get(process.state, process.state)
        why = f": {state}" if state else ""
        name = clean_line(process.name)
        lines += wrap(f"pid {process.pid} ({name}){whose} survived SIGKILL{why}", width)
    return lines


def pick_log_tail(cause: Cause) -> list[str]:
    """Clean a rank's last lines; its traceback is left out where the card shows it anyway."""
    lines = [line for line in map(clean_line, cause.log_tail) if line.strip()]
    if not cause.traceback:
        return lines
    told = {line.strip() for line in cause.traceback.splitlines()}
    return [line for line in lines if not _is_told(_RANK_PREFIX.sub("", line).strip(), told)]


def _is_told(line: str, told: set[str]) -> bool:
    return line in told or line == "Traceback (most recent call last):" or not line.strip("^~ ")
