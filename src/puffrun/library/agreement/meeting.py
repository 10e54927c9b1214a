"""The protocol under everything: all ranks meet, and every rank gets the same verdict.

The model is MPI's `MPI_Comm_agree` (ULFM): the verdict is uniform even when ranks are dead or
late. It runs on the store that torchrun's agent hosts, never on a collective, so it cannot pair
with one of the program's, needs no process group and works across sub-groups.

Meeting number n, the same count on every rank (`n/` is a prefix in the store):
1. append to `n/who` what this rank brings: evidence before arrival;
2. add to `n/count`; the sum tells how many came, and whether all called it by the same name;
3. the last to come concludes; so does a rank whose deadline passed, soon a rank that brings an
   error or another name, and the agent when a rank has died; `compare_set` lets the first win;
4. everybody reads `n/verdict`. Meeting n-1 is deleted by the last to come to n, because then
   every rank has read it.
"""

import functools
import os
import threading
import traceback
import zlib
from dataclasses import dataclass, field
from typing import Any

from puffrun.errors import DisagreementError
from puffrun.library.agreement.board import Board
from puffrun.library.agreement.gone_ranks import COUNT_BITS, COUNT_MASK, OPEN, read_gone
from puffrun.library.agreement.meeting_verdict import (
    MAX_MESSAGE_CHARS,
    Absence,
    Arrival,
    Decide,
    RankError,
    Verdict,
    conclude,
)
from puffrun.library.call_site import find_caller, find_raising_line
from puffrun.library.world import World, find_world, take_place

DEFAULT_TIMEOUT_S = 600.0
MAX_TIMEOUT_S = 20 * 86_400  # as long as the store waits
WINDOW_S = 1.0  # how long others may still add their errors once one is known
STORE_S = 60.0  # how long the store may take to show a verdict that was written
NAME_BITS = 22


@dataclass(frozen=True)
class Told:
    """What those who wait for a meeting are told of it: its name, and the wait before it."""

    topic: str
    waited_s: float = 0.0


@dataclass
class Meetings:
    """This rank's meetings, in order. Use from one thread at a time."""

    world: World
    board: Board
    _number: int = 0
    _last: dict[int, Arrival] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def meet(
        self,
        topic: str,
        *,
        error: BaseException | None = None,
        value: Any = None,
        decide: Decide | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        told: Told | None = None,
    ) -> Any:
        """Come to the next meeting, wait for its verdict, and return what `decide` returned.

        `decide` gets every rank's value on whichever rank concludes; it may raise RefusedError.
        `told` is for the text only, where the wait is the last part of a longer one.

        Raises:
            DisagreementError: the same on all ranks; chained to `error`, if there is one.
        """
        with self._lock:
            mine = Arrival(
                rank=self.world.rank,
                topic=topic,
                at=find_caller(),
                error=None if error is None else make_rank_error(self.world.rank, error),
                value=value,
            )
            meeting = Meeting(self, self._number, mine, decide, told or Told(topic))
            self._number += 1
            verdict = meeting.hold(timeout_s)
        if verdict.text is not None:
            raise DisagreementError(verdict.text, verdict.errors) from error
        return verdict.result

    def leave(self, topic: str, error: BaseException) -> None:
        """Bring an error to the next meeting and do not wait: this process is about to end."""
        with self._lock:
            brought = make_rank_error(self.world.rank, error)
            mine = Arrival(self.world.rank, topic, find_caller(), brought)
            meeting = Meeting(self, self._number, mine, None, Told(topic))
            self._number += 1
            meeting.come()
            meeting.propose(conclude(topic, [mine], self.world.size))

    @property
    def next_number(self) -> int:
        """The number that the next meeting will have."""
        return self._number


@dataclass
class Meeting:
    """One meeting as one rank sees it."""

    meetings: Meetings
    number: int
    mine: Arrival
    decide: Decide | None
    told: Told

    def __post_init__(self) -> None:
        """Name the keys."""
        self._board = self.meetings.board
        self._size = self.meetings.world.size

    def _key(self, name: str) -> str:
        return f"{self.number}/{name}"

    def hold(self, timeout_s: float) -> Verdict:
        """Come, wait, return the verdict."""
        try:
            return self._hold(timeout_s)
        except BaseException as interruption:
            self._break_off(interruption)
            raise

    def _hold(self, timeout_s: float) -> Verdict:
        count, names_differ = self.come()
        if count == self._size:
            verdict = self.propose(self._conclude(0.0))
            self._forget(self.number - 1)
            return verdict
        hurry = names_differ or self.mine.error is not None
        if count == 1:
            self._board.store.set(OPEN, str(self.number))
            if read_gone(self._board.store):
                return self.propose(self._conclude(0.0))
        return self._wait(min(WINDOW_S, timeout_s) if hurry else timeout_s, hurry=hurry)

    def come(self) -> tuple[int, bool]:
        """Arrive. Returns how many have come, and whether some call the meeting otherwise."""
        store = self._board.store
        store.append(self._key("who"), self.mine.to_json() + "\n")
        name = zlib.crc32(self.mine.topic.encode()) >> (32 - NAME_BITS)
        total = store.add(self._key("count"), 1 + (name << COUNT_BITS))
        count = total & COUNT_MASK
        return count, total >> COUNT_BITS != count * name

    def propose(self, verdict: Verdict) -> Verdict:
        """Write a verdict; returns the one that counts, which is the first."""
        written = self._board.store.compare_set(self._key("verdict"), "", verdict.to_json())
        return Verdict.from_json(written)

    def _wait(self, limit_s: float, *, hurry: bool) -> Verdict:
        """Wait for the verdict; at the deadline write one, unless somebody showed progress."""
        waited_s = self.told.waited_s
        awaited = self._board.expect(self._key("verdict"))
        beat = None
        while not awaited.wait(limit_s):
            waited_s += limit_s
            last_beat, beat = beat, None if hurry else self._board.find(self._key("beat"))
            if beat is None or beat == last_beat:
                self.propose(self._conclude(waited_s))
                break
        if not awaited.wait(STORE_S):
            raise TimeoutError(f"{self.mine.topic}: the store did not answer for {STORE_S:.0f} s")
        if awaited.error is not None:
            raise awaited.error
        return Verdict.from_json(awaited.value)

    def _conclude(self, waited_s: float) -> Verdict:
        lines = self._board.find_lines(self._key("who"))
        arrivals = [Arrival.from_json(line) for line in lines]
        absence = Absence()
        if len(arrivals) < self._size and self.mine.error is None:
            absence = self._look_for_missing({a.rank for a in arrivals}, waited_s)
        return conclude(self.told.topic, arrivals, self._size, absence, self.decide)

    def _look_for_missing(self, came: set[int], waited_s: float) -> Absence:
        gone = read_gone(self._board.store)
        missing = [rank for rank in range(self._size) if rank not in came]
        before = self._board.find_lines(f"{self.number - 1}/who")
        last = {arrival.rank: arrival for arrival in map(Arrival.from_json, before)}
        places = self._board.ask_places(rank for rank in missing if rank not in gone)
        return Absence(waited_s, gone, places, last)

    def _break_off(self, interruption: BaseException) -> None:
        """Leave a meeting that this rank was on its way to, so that nobody waits for it in vain."""
        if isinstance(interruption, (RuntimeError, TimeoutError)):
            return  # the store itself failed
        error = make_rank_error(self.mine.rank, interruption)
        self.propose(conclude(self.mine.topic, [Arrival(error.rank, "", "", error)], self._size))

    def _forget(self, number: int) -> None:
        if number >= 0:
            for name in ("who", "count", "verdict", "beat"):
                self._board.store.delete_key(f"{number}/{name}")


def make_rank_error(rank: int, error: BaseException) -> RankError:
    """Turn an exception into text: it may have a `__str__` that fails, and not be picklable."""
    try:
        message = str(error)
    except Exception as failure:  # noqa: BLE001  # the program's own __str__ may do anything
        message = f"<its message could not be read: {type(failure).__name__}>"
    try:
        trace = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001  # the same
        trace = "".join(traceback.format_tb(error.__traceback__))
    return RankError(
        rank=rank,
        type=type(error).__qualname__,
        message=message[:MAX_MESSAGE_CHARS],
        at=find_raising_line(error),
        traceback=trace[-MAX_MESSAGE_CHARS:],
    )


def check_timeout(timeout_s: float) -> None:
    """Look at a limit before anybody waits for it.

    Raises:
        ValueError: it is not a number of seconds, negative, infinite or beyond what Python waits.
    """
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not is_number or not 0 <= timeout_s <= MAX_TIMEOUT_S:
        days = MAX_TIMEOUT_S // 86_400
        raise ValueError(f"timeout_s has to be seconds, from 0 to {days} days, not {timeout_s!r}")


@functools.lru_cache(maxsize=1)
def _meetings_of(world: World, pid: int) -> Meetings:
    """Make the connection of this process; a fork has to make its own (hence `pid`)."""
    del pid
    return Meetings(world, Board(world))


def find_meetings(timeout_s: float = DEFAULT_TIMEOUT_S) -> Meetings | None:
    """Return this process's meetings; None when it is alone, so that nothing needs torch.

    The limit is looked at here, on every rank alike: only some of them would come to wait for it.

    Raises:
        ValueError: `timeout_s` is not a number of seconds that can be waited for.
    """
    check_timeout(timeout_s)
    world = find_world(os.environ)
    return None if world.is_single else _meetings_of(world, os.getpid())


take_place(os.environ)  # before any process below this one can meet anybody
