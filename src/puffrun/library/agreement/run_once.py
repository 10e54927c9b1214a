"""`run_once` and `main_first`: one rank does it, and no rank goes on without it.

Whoever writes `if rank == 0: build()` and a barrier after it has a hang (an error on rank 0) or a
race (the others go on although it failed). Here the others get the result, or the same error.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from puffrun.library.agreement.agree import sharing_errors
from puffrun.library.agreement.effort import telling_effort
from puffrun.library.agreement.meeting import DEFAULT_TIMEOUT_S, Meetings, find_meetings
from puffrun.library.world import World

T = TypeVar("T")
MAX_RESULT_BYTES = 1 << 20
PATH_KEY = "__path__"
DICT_KEY = "__dict__"  # marks a dict of the program's own that looks like a marked one


def run_once(
    fn: Callable[..., T],
    *args: Any,
    per_node: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> T:
    """Call `fn(*args)` on rank 0 only, or on one rank of each node; all get its result or error.

    The result has to be small and made of None, bool, numbers, str, Path, list, tuple (arrives as
    a list) and dict with str keys. The others wait for as long as the work goes on; they give up
    after `timeout_s` seconds in which it spent no CPU time and did not call `progress()`.

    Raises:
        DisagreementError: `fn` raised, its rank is gone, or nothing happened for too long.
    """
    topic = f"run_once `{getattr(fn, '__qualname__', type(fn).__name__)}`"
    return meet_once(
        find_meetings(timeout_s), topic, lambda: fn(*args), per_node=per_node, timeout_s=timeout_s
    )


def meet_once(
    meetings: Meetings | None,
    topic: str,
    fn: Callable[[], T],
    *,
    per_node: bool = False,
    timeout_s: float,
) -> T:
    """Do what `run_once` does, under another name.

    Raises:
        DisagreementError: as `run_once`.
    """
    if meetings is None:
        return fn()
    value = None
    if is_main(meetings.world, per_node=per_node):
        with sharing_errors(meetings, topic, timeout_s), telling(meetings, timeout_s):
            value = {"node": meetings.world.node, "result": encode(fn())}
    results = meetings.meet(topic, value=value, decide=collect_results, timeout_s=timeout_s)
    return cast("T", decode(results[str(meetings.world.node if per_node else 0)]))


@contextmanager
def main_first(*, per_node: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S) -> Iterator[bool]:
    """Run the block on rank 0 (or one rank of each node) first, then on all the others.

    Yields whether this rank is the first. An error of the first is the error of all, and the
    others do not enter; nobody leaves before all have finished.

    Raises:
        DisagreementError: as `run_once`; also when the block fails on one of the others.
    """
    meetings = find_meetings(timeout_s)
    if meetings is None:
        yield True
        return
    main = is_main(meetings.world, per_node=per_node)
    first, then = "main_first", "main_first, the others"
    if not main:
        meetings.meet(first, timeout_s=timeout_s)
    topic = first if main else then
    with sharing_errors(meetings, topic, timeout_s), telling(meetings, timeout_s):
        yield main
    if main:
        meetings.meet(first, timeout_s=timeout_s)
    meetings.meet(then, timeout_s=timeout_s)


def is_main(world: World, *, per_node: bool) -> bool:
    """Whether this rank is the one that does it."""
    return world.local_rank == 0 if per_node else world.rank == 0


@contextmanager
def telling(meetings: Meetings, timeout_s: float) -> Iterator[None]:
    """While the block works, let those who wait at the next meeting know."""
    key = f"{meetings.next_number}/beat"
    store = meetings.board.store
    with telling_effort(lambda beat: store.set(key, str(beat)), timeout_s):
        yield


def collect_results(values: dict[int, Any]) -> dict[str, Any]:
    """Take what the main ranks brought, by node."""
    return {str(v["node"]): v["result"] for v in values.values() if v is not None}


def encode(value: Any) -> Any:
    """Turn a result into what JSON has, a Path into a marked dict.

    Raises:
        TypeError: it is of another type, or larger than 1 MiB.
    """
    encoded = _encode(value)
    if len(json.dumps(encoded)) > MAX_RESULT_BYTES:
        raise TypeError("the result is larger than 1 MiB: write it to a file, return its path")
    return encoded


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return {PATH_KEY: str(value)}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        encoded = {key: _encode(item) for key, item in value.items()}
        return {DICT_KEY: encoded} if _looks_marked(encoded) else encoded
    raise TypeError(
        f"a result of type {type(value).__name__} cannot be sent to the other ranks: "
        "return numbers, text, paths, lists or dicts"
    )


def _looks_marked(value: dict[str, Any]) -> bool:
    return len(value) == 1 and not value.keys().isdisjoint((PATH_KEY, DICT_KEY))


def decode(value: Any) -> Any:
    """Turn an encoded result back."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {PATH_KEY}:
            return Path(value[PATH_KEY])
        if _looks_marked(value):
            value = value[DICT_KEY]
        return {key: decode(item) for key, item in value.items()}
    return value
