"""The card that ends a run: what happened, the evidence, and what to type next. Pure.

A card keeps to about twenty lines: what repeats or can be looked up goes first.
"""

import textwrap
from dataclasses import dataclass, replace
from typing import Literal

from puffrun.console.card import evidence_lines as evidence
from puffrun.console.card.footer import render_attempts, render_footer
from puffrun.console.card.frames import find_frames, pick_user_frames, render_frames
from puffrun.console.card.headline import render_headline
from puffrun.console.card.plan_facts import RunFacts
from puffrun.console.card.related_errors import render_related
from puffrun.console.paint import Paint
from puffrun.console.text import (
    clean_line,
    count_cells,
    render_count,
    render_duration,
    shorten,
    wrap_within,
)
from puffrun.outcome import Outcome

MAX_LINES = 20
_INDENT = "    "
_START = "puffrun  "
_SENTENCE_LINES = 4
_LOG_LINES = 8
_MESSAGE_LINES = 10
_HANG_KINDS = ("stall", "early-exit", "dead-child")


@dataclass(frozen=True)
class Block:
    """A paragraph of the card. `least` lines of it stay when the card is too long.

    `head` is a line of its own, dim; `keeps_end` says which end is the telling one; `is_glued`
    means no empty line before it.
    """

    lines: tuple[str, ...]
    least: int = 0
    head: str = ""
    keeps_end: bool = False
    is_glued: bool = False
    tone: Literal["", "red", "places"] = ""

    @property
    def height(self) -> int:
        """Number of lines that it takes, with the empty one before it."""
        return (not self.is_glued) + bool(self.head) + len(self.lines) if self.lines else 0

    def shrunk(self, by: int, least: int) -> "Block":
        """Return the block with up to `by` lines less, but not under `least`."""
        kept = max(len(self.lines) - by, least)
        if by <= 0 or kept >= len(self.lines):
            return self
        if self.keeps_end or kept == 0:
            return replace(self, lines=self.lines[len(self.lines) - kept :])
        last = self.lines[kept - 1]
        return replace(self, lines=(*self.lines[: kept - 1], shorten(last, count_cells(last) - 1)))


def render_title(facts: RunFacts) -> str:
    """Return the first line: `run 1130-1042-k7f  8 ranks on 8 GPUs (NVIDIA H100)  train.py`."""
    world_size = facts.nodes * facts.ranks_per_node
    if facts.on_gpus:
        kind = f" ({facts.device_name})" if facts.device_name else ""
        where = f"{render_count(world_size, 'GPU')}{kind}"
    else:
        where = "the CPU"
    nodes = f" of {facts.nodes} nodes" if facts.nodes > 1 else ""
    ranks = render_count(world_size, "rank")
    return f"run {facts.run_id}  {ranks} on {where}{nodes}  {clean_line(facts.program)}".rstrip()


def render_card(
    outcome: Outcome, facts: RunFacts, width: int, *, paint: Paint | None = None
) -> list[str]:
    """Return the lines that end a run, ready to be drawn."""
    paint = paint or Paint(color=False)
    if outcome.kind == "success" and not outcome.leftovers:
        return _render_success(outcome, facts, width, paint)
    sentence, message = _fit_headline(outcome, facts, width)
    blocks = _fit([message, *_make_blocks(outcome, facts, width)], MAX_LINES - len(sentence))
    lines = [paint.dim(_START.rstrip()) + "  " + paint.red(sentence[0].removeprefix(_START))]
    lines += [paint.red(line) for line in sentence[1:]]
    for block in blocks:
        lines += _draw(block, paint) if block.lines else []
    return lines


def _render_success(outcome: Outcome, facts: RunFacts, width: int, paint: Paint) -> list[str]:
    ranks = f"{render_count(len(outcome.ranks), 'rank')} exited 0"
    parts = (
        f"done in {render_duration(outcome.duration_s)}",
        ranks,
        f"logs {facts.path(facts.run_dir)}",
    )
    room = width - len(_START)
    told = str((outcome.waiting or {}).get("text") or "")
    waiting = wrap_within(f"waiting: {told}", room, 2, indent="", hanging="  ") if told else []
    cleaned = evidence.render_cleaned(outcome.cleaned, room)
    more = (*waiting, *render_attempts(outcome, room), *cleaned)
    return [paint.dim(_START.rstrip()) + "  " + line for line in ("  ".join(parts), *more)]


def _fit_headline(outcome: Outcome, facts: RunFacts, width: int) -> tuple[list[str], Block]:
    """Wrap the sentence after `puffrun`; what else the message says is the first paragraph."""
    first, *rest = render_headline(outcome, facts)
    hanging = " " * len(_START)
    sentence = wrap_within(first, width, _SENTENCE_LINES, indent=_START, hanging=hanging)
    body: list[str] = []
    told = [line for line in rest if line][:_MESSAGE_LINES]
    for line in textwrap.dedent("\n".join(told)).split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        body += wrap_within(
            line.lstrip(), width - len(_INDENT), 3, indent=indent, hanging=indent + "  "
        )
    return sentence or [_START], Block(tuple(body[:_MESSAGE_LINES]), least=2)


def _make_blocks(outcome: Outcome, facts: RunFacts, width: int) -> list[Block]:
    """Make the card's paragraphs in the order in which they are read."""
    room = width - len(_INDENT)
    is_hang = _is_hang(outcome)
    table = evidence.render_hang_table(outcome, room) if is_hang else []
    others = [] if is_hang else evidence.render_others(_without_unborn(outcome), room)
    cleaned = evidence.render_cleaned(outcome.cleaned, room)
    footer = render_footer(outcome, facts, room)
    return [
        Block(tuple(evidence.render_leftovers(outcome.leftovers, room)), least=3, tone="red"),
        _make_related_block(outcome, facts, room),
        Block(tuple(table), least=6),
        _make_frames_block(outcome, facts, room),
        _make_log_block(outcome, room),
        Block((*others, *cleaned), least=2),
        Block(tuple(footer), least=len(footer), is_glued=bool(others or cleaned)),
    ]


def _is_hang(outcome: Outcome) -> bool:
    """Whether who waits for whom is the story: also at a time limit, where somebody is missing."""
    if outcome.hang is None or outcome.cause is None:
        return False
    is_held_up = outcome.cause.kind == "timeout" and bool(outcome.hang.culprits)
    return outcome.cause.kind in _HANG_KINDS or is_held_up


def _without_unborn(outcome: Outcome) -> Outcome:
    """Leave out ranks that never ran: nobody ended those."""
    if outcome.hang is not None:
        return outcome
    return replace(outcome, ranks=tuple(r for r in outcome.ranks if r.pid is not None))


def _make_frames_block(outcome: Outcome, facts: RunFacts, room: int) -> Block:
    frames = pick_user_frames(find_frames(outcome.cause)) if outcome.cause else ()
    lines = render_frames(frames, facts.cwd, room)
    return Block(tuple(lines), least=2, keeps_end=True, tone="places")


def _make_related_block(outcome: Outcome, facts: RunFacts, room: int) -> Block:
    lines = render_related(outcome.cause, facts.cwd, room) if outcome.cause else []
    return Block(tuple(lines), least=2, keeps_end=True)


def _make_log_block(outcome: Outcome, room: int) -> Block:
    cause = outcome.cause
    whose = {"agent-lost": "torchrun's agent", "build": "the build"}
    if cause is None or (cause.rank is None and cause.kind not in whose):
        return Block(())  # nobody's in particular
    lines = evidence.pick_log_tail(cause)[-_LOG_LINES:]
    return Block(
        tuple(shorten("  " + line, room) for line in lines),
        least=2,
        head=f"last output of {whose.get(cause.kind, f'rank {cause.rank}')}",
        keeps_end=True,
    )


def _fit(blocks: list[Block], room: int) -> list[Block]:
    """Shrink paragraphs until the card fits: log lines first, the outer frames next.

    When that is not enough, whole paragraphs go, in the same order; the last one always stays.
    """
    fitted = list(blocks)
    by_worth = sorted(
        range(len(blocks)), key=lambda i: (not blocks[i].head, not blocks[i].keeps_end)
    )
    for leasts in ([block.least for block in blocks], [0] * (len(blocks) - 1)):
        for index in (i for i in by_worth if i < len(leasts)):
            excess = sum(block.height for block in fitted) - room
            fitted[index] = fitted[index].shrunk(excess, leasts[index])
    return fitted


def _draw(block: Block, paint: Paint) -> list[str]:
    lines = [_INDENT + _paint_line(line, block.tone, paint) for line in block.lines]
    head = [_INDENT + paint.dim(block.head)] if block.head else []
    return [*([] if block.is_glued else [""]), *head, *lines]


def _paint_line(line: str, tone: str, paint: Paint) -> str:
    if tone == "red":
        return paint.red(line)
    place, gap, code = line.partition("   ") if tone == "places" else ("", "", line)
    return paint.cyan(place) + gap + code
