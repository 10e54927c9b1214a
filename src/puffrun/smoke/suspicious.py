"""Output that a healthy run does not have: one table of patterns. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from puffrun.errors import UsageError


@dataclass(frozen=True)
class Suspicion:
    """A line of a rank's log (counted from 1), why it is no good sign, and how many more are."""

    rank: int
    line: int
    text: str
    why: str
    more: int = 0


_PRINTED = "an exception was printed"
_NO_NUMBER = "the loss is not a number"
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
_COLOR = re.compile(r"\x1b\[[\d;]*m")
# every repetition is bounded: a long line must not cost the square of its length
_WORD = r"\w{0,48}"
_LOSS = rf"{_WORD}loss(es)?(_\w{{1,48}}|_?\d{{1,9}})?\b"  # not `lossless`
# where training starts from, or a limit: what `inf` is no bad sign for
_BOUND = rf"({_WORD}_)?(best|min|minimum|lowest)(_|{_WORD}loss)|{_WORD}loss_(best|min|lim)"
_NOT_BOUND = rf"(?<!best[ ./-])(?<!min[ ./-])(?<!lowest[ ./-])\b(?!{_BOUND})"
_EQUALS = r"['\"]?([\s:=|\u2192]|->|=>){1,32}['\"]?"
_VALUE = r"((\w{0,16}tensor|array|np\.float\d{1,3}|float)\()?\[{0,4} {0,8}[-+]?"
_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"^(\[rank\d+\]: ?)?Traceback \(most recent call last\):", _PRINTED),
    (r"\bException ignored in", "an exception in a destructor or at exit"),
    (r"\bException in thread ", "a thread died of an exception"),
    (r"\bsegmentation fault\b|\bcore dumped\b|^Fatal Python error:", "a process crashed"),
    (r"==\d+==\s*ERROR: \w*Sanitizer|\bruntime error: ", "a sanitizer found an error"),
    (r"\bleaked (semaphore|shared_memory|folder)\b", "objects were leaked at shutdown"),
    (r"destroy_process_group\(\) was not called", "the process group was not destroyed"),
    (r"\bCUDA error\b|\bCUDNN_STATUS_(?!SUCCESS)|\bcublas\w* failed", "CUDA reported an error"),
    (r"\bNCCL (WARN|ERROR)\b|\bncclUnhandledCudaError\b", "NCCL reported trouble"),
    (r"\bout of memory\b", "memory ran out"),
    (r"\bWatchdog caught collective operation timeout\b", "a collective timed out"),
    (r"\bfind_unused_parameters\b.*\bdid not receive grad", "parameters took no part in the loss"),
    (rf"\b{_LOSS}{_EQUALS}{_VALUE}nan(?![\w-])", _NO_NUMBER),
    (rf"{_NOT_BOUND}{_LOSS}{_EQUALS}{_VALUE}inf(inity)?(?![\w-])", _NO_NUMBER),
    (r"\b(Permission denied|No space left on device|Too many open files)\b", "the system refused"),
)
_COMPILED = tuple((re.compile(pattern, re.IGNORECASE), why) for pattern, why in _PATTERNS)


def compile_allowed(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Compile the patterns of lines that the user knows to be harmless.

    Raises:
        UsageError: one is no regular expression.
    """
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise UsageError(f"`--allow {pattern}` is no regular expression: {error}") from None
    return tuple(compiled)


def find_suspicions(
    rank: int, lines: Iterable[str], allowed: Sequence[re.Pattern[str]] = ()
) -> tuple[Suspicion, ...]:
    """Find what a healthy run does not print: the first line of each kind, and how many more."""
    found: dict[str, Suspicion] = {}
    numbered = enumerate(lines, 1)
    for number, line in numbered:
        why = _find_reason(_COLOR.sub("", line))
        if why is None:
            continue
        text = _find_exception(numbered) if why == _PRINTED else line.strip()
        if any(pattern.search(part) for pattern in allowed for part in (line, text)):
            continue
        first = found.get(why)
        found[why] = (
            replace(first, more=first.more + 1)
            if first
            else Suspicion(rank, number, text[:300], why)
        )
    return tuple(found.values())


def _find_exception(lines: Iterator[tuple[int, str]]) -> str:
    """Read on to the end of a traceback: its first line that is not indented."""
    for _, line in lines:
        text = _RANK_PREFIX.sub("", line)
        if text.strip() and not text.startswith(" "):
            return text.strip()
    return "a traceback that is cut off"


def _find_reason(line: str) -> str | None:
    return next((why for pattern, why in _COMPILED if pattern.search(line)), None)
