"""Whether a failed attempt is worth another: a pure decision over what the attempts achieved."""

from collections.abc import Sequence
from dataclasses import dataclass

from puffrun.outcome import Cause, OutcomeKind

RESTARTABLE: tuple[OutcomeKind, ...] = ("failed", "hung")
FIRST_DELAY_S = 1.0
MAX_DELAY_S = 30.0
LONGER = 1.5  # an attempt that lived this many times as long as the last one got further,
LONGER_S = 10.0  # if that is as many seconds more at least: starting takes longer or shorter
LONG_LIFE_S = 60.0  # one that lived this long got somewhere, whatever the last one did
MAX_IDLE = 2  # restarts without a sign of progress, for a program that reports none


@dataclass(frozen=True)
class AttemptResult:
    """What one attempt came to. `step`: the highest that a rank reported, None if none did."""

    attempt: int
    kind: OutcomeKind
    exit_code: int
    started_at: int
    ended_at: int
    cause: Cause | None
    checkpoint: str | None = None
    step: int | None = None

    @property
    def duration_s(self) -> float:
        """How long it lived, in seconds."""
        return (self.ended_at - self.started_at) / 1e9


@dataclass(frozen=True)
class Restart:
    """Start the ranks again after this many seconds."""

    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """Do not start again; `reason` is worth a line, or None when it goes without saying."""

    reason: str | None = None


def decide_restart(attempts: Sequence[AttemptResult], max_restarts: int) -> Restart | GiveUp:
    """Restart after a failure, with a doubling delay, as long as restarts get anywhere."""
    last = attempts[-1]
    if max_restarts == 0 or last.kind not in RESTARTABLE:
        return GiveUp()
    if len(attempts) > max_restarts:
        return GiveUp(f"all {max_restarts} restarts are used up")
    idle = count_idle(attempts)
    if idle >= (1 if reports_progress(attempts) else MAX_IDLE):
        return GiveUp(
            f"restart {last.attempt} got no further than the attempt before it, "
            "as far as puffrun can tell"
        )
    return Restart(min(FIRST_DELAY_S * 2 ** (len(attempts) - 1), MAX_DELAY_S))


def count_idle(attempts: Sequence[AttemptResult]) -> int:
    """Count the last restarts, in a row, that got no further than the attempt before them."""
    idle = 0
    for before, after in zip(attempts[-2::-1], attempts[:0:-1], strict=True):
        if made_progress(before, after):
            break
        idle += 1
    return idle


def reports_progress(attempts: Sequence[AttemptResult]) -> bool:
    """Whether the program tells how far it is: by `progress()`, or by naming checkpoints."""
    return any(a.step is not None or a.checkpoint is not None for a in attempts)


def made_progress(before: AttemptResult, after: AttemptResult) -> bool:
    """Whether an attempt got further: a new checkpoint or step, another cause, a longer life."""
    if after.checkpoint is not None and after.checkpoint != before.checkpoint:
        return True
    if after.step is not None and after.step > (before.step or 0):
        return True
    if _what(before.cause) != _what(after.cause):
        return True
    longer_s = max(LONGER * before.duration_s, before.duration_s + LONGER_S)
    return after.duration_s > min(longer_s, LONG_LIFE_S)


def _what(cause: Cause | None) -> tuple[str, str] | None:
    return None if cause is None else (cause.kind, cause.summary)
