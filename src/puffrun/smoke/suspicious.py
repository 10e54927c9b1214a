"""Output that a healthy run does not have: one table of patterns. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from puffrun.errors import UsageError

MAX_PER_RANK = 5  # the first ones tell; the log has the rest


@dataclass(frozen=True)
class Suspicion:
    """A line of a rank's log (counted from 1), and why it is no good sign."""

    rank: int
    line: int
    text: str
    why: str


_PRINTED = "an exception was printed"
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")
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
    (r"\b\w*loss\w*['\"]?\s*[:= ]\s*[-+]?(nan|inf)\b", "the loss is not a number"),
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
    """Find the first lines of a rank's log that a healthy run does not have."""
    found: list[Suspicion] = []
    numbered = enumerate(lines, 1)
    for number, line in numbered:
        why = _find_reason(line)
        if why is None:
            continue
        text = _find_exception(numbered) if why == _PRINTED else line.strip()
        if not any(pattern.search(part) for pattern in allowed for part in (line, text)):
            found.append(Suspicion(rank, number, text[:300], why))
        if len(found) == MAX_PER_RANK:
            break
    return tuple(found)


def _find_exception(lines: Iterator[tuple[int, str]]) -> str:
    """Read on to the end of a traceback: its first line that is not indented."""
    for _, line in lines:
        text = _RANK_PREFIX.sub("", line)
        if text.strip() and not text.startswith(" "):
            return text.strip()
    return "a traceback that is cut off"


def _find_reason(line: str) -> str | None:
    return next((why for pattern, why in _COMPILED if pattern.search(line)), None)
