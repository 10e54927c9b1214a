"""Dead ranks speak through the agent: it knows of an exit at once, and tells the ranks that wait.

`open` is the number of the newest meeting, `gone` a line for each rank that ended. A rank sets
`open` before it reads `gone`, the agent appends to `gone` before it reads `open`: so one of the
two always sees the other, whatever happens in between.
"""

import json
import signal

from puffrun.rank.board import Store
from puffrun.rank.verdict import Absence, Arrival, conclude

OPEN, GONE = "open", "gone"


def describe_exit(returncode: int | None) -> str:
    """Say how a process ended; `returncode` as subprocess has it."""
    if returncode is None:
        return "ended"
    if returncode >= 0:
        return f"exited {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"


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
    if store.check([f"{number}/verdict"]) or not store.check([f"{number}/who"]):
        return
    arrivals = [
        Arrival.from_json(line) for line in store.get(f"{number}/who").decode().splitlines()
    ]
    if not arrivals or any(arrival.rank == rank for arrival in arrivals):
        return  # it came before it ended, so this meeting does not wait for it
    verdict = conclude(arrivals[0].topic, arrivals, size, Absence(gone=read_gone(store)))
    store.compare_set(f"{number}/verdict", "", verdict.to_json())
