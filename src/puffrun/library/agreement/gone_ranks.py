"""Dead ranks speak through the agent: it knows of an exit at once, and tells the ranks that wait.

`open` is the number of the newest meeting, `gone` a line for each rank that ended. A rank sets
`open` before it reads `gone`, the agent appends to `gone` before it reads `open`: so one of the
two always sees the other, whatever happens in between.
"""

import json
import queue
import threading
from collections.abc import Mapping
from contextlib import suppress

from puffrun import naming
from puffrun.library.agreement.board import Store, connect
from puffrun.library.agreement.meeting_verdict import Absence, Arrival, conclude
from puffrun.library.world import World, detect_world

OPEN, GONE = "open", "gone"
MOMENTS_S = 0.2
COUNT_BITS = 20  # of `n/count`: up to a million ranks
COUNT_MASK = (1 << COUNT_BITS) - 1


def describe_exit(returncode: int | None) -> str:
    """Say how a process ended; `returncode` as subprocess has it."""
    if returncode is None:
        return "ended"
    return naming.describe_exit(returncode).removeprefix("was ")


def read_gone(store: Store) -> dict[int, str]:
    """Read which ranks have ended, and how."""
    if not store.check([GONE]):
        return {}
    lines = store.get(GONE).decode().splitlines()
    return {entry["rank"]: entry["how"] for entry in map(json.loads, lines)}


def announce_exit(store: Store, rank: int, size: int, returncode: int | None) -> None:
    """Tell the ranks that one of them has ended, and conclude the meeting that waits for it."""
    entry = {"rank": rank, "how": describe_exit(returncode)}
    store.append(GONE, json.dumps(entry) + "\n")
    if not store.check([OPEN]):
        return
    number = int(store.get(OPEN))
    if _waits_for(store, number, rank, size):
        arrivals = [arrival for arrival in _read_arrivals(store, number) if arrival.rank != rank]
        topic = arrivals[0].topic if arrivals else "a meeting"
        verdict = conclude(topic, arrivals, size, Absence(gone=read_gone(store)))
        store.compare_set(f"{number}/verdict", "", verdict.to_json())


def _waits_for(store: Store, number: int, rank: int, size: int) -> bool:
    """Whether a meeting cannot end without this rank.

    A rank that came need not be waited for, unless it died on the way in, between its record and
    its count, or as the last one, before it concluded. A living rank does both within moments.
    """
    if all(arrival.rank != rank for arrival in _read_arrivals(store, number)):
        return not store.check([f"{number}/verdict"])
    threading.Event().wait(MOMENTS_S)
    if store.check([f"{number}/verdict"]) or not store.check([f"{number}/count"]):
        return False
    count = store.add(f"{number}/count", 0) & COUNT_MASK
    return count == size or count < len(_read_arrivals(store, number))


def _read_arrivals(store: Store, number: int) -> list[Arrival]:
    if not store.check([f"{number}/who"]):
        return []
    lines = store.get(f"{number}/who").decode().splitlines()
    return [Arrival.from_json(line) for line in lines]


class Announcer:
    """The agent's voice: connects once, when the first rank is started, and tells of each exit."""

    def __init__(self) -> None:
        self._exits: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, env: Mapping[str, str]) -> None:
        """Begin to speak; `env` is a rank's. Further calls do nothing."""
        if self._thread is None:
            world = detect_world(env)
            self._thread = threading.Thread(target=self._speak, args=(world,), daemon=True)
            self._thread.start()

    def tell(self, rank: int, returncode: int) -> None:
        """Tell of a rank's exit; does not wait."""
        self._exits.put((rank, returncode))

    def _speak(self, world: World) -> None:
        with suppress(RuntimeError):  # the store is gone: so is whoever would listen
            store = connect(world)
            while True:
                rank, returncode = self._exits.get()
                announce_exit(store, rank, world.size, returncode)
