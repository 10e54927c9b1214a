"""The ranks' board: torch's store, with waits that have a deadline and can be interrupted.

A client of the store is one lock: a `set` waits behind another thread's `wait`. So the thread
that waits for verdicts, and the one that answers "where are you?", have clients of their own.
They are connected once, at the first meeting, never on the way to a failure: a connect looks up
a name, and that can take seconds.
"""

import atexit
import contextlib
import os
import queue
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol, cast

from puffrun.library.call_site import find_main_thread_place
from puffrun.library.world import World

CONNECT_S = 300.0  # as torchrun's own: ranks of a large run start minutes apart
FOREVER = timedelta(days=20)
ANSWER_S = 1.0  # how long a rank may take to say where it is
MAX_ASKED = 16
POLL_S = 0.01
LEAVE_S = 1.0


class Store(Protocol):
    """What is used of torch's Store; some of it is missing in torch's own stubs."""

    def set(self, key: str, value: str) -> None: ...  # noqa: D102  # torch's
    def get(self, key: str) -> bytes: ...  # noqa: D102  # torch's
    def add(self, key: str, value: int) -> int: ...  # noqa: D102  # torch's
    def append(self, key: str, value: str) -> None: ...  # noqa: D102  # torch's
    def check(self, keys: list[str]) -> bool: ...  # noqa: D102  # torch's
    def wait(self, keys: list[str], timeout: timedelta) -> None: ...  # noqa: D102  # torch's
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...  # noqa: D102  # torch's
    def delete_key(self, key: str) -> bool: ...  # noqa: D102  # torch's
    def queue_push(self, key: str, value: str) -> None: ...  # noqa: D102  # torch's
    def queue_pop(self, key: str) -> bytes: ...  # noqa: D102  # torch's
    def set_timeout(self, timeout: timedelta) -> None: ...  # noqa: D102  # torch's
    def clone(self) -> "Store": ...  # noqa: D102  # torch's


def connect(world: World) -> Store:
    """Connect to the store that torch's `env://` uses, in a corner of our own.

    Raises:
        DistNetworkError: nobody answers there within `CONNECT_S`.
    """
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    if world.store_address is None:
        from torch.distributed.distributed_c10d import _get_default_store

        return cast("Store", PrefixStore(world.namespace, _get_default_store()))
    host, port, agent_hosts = world.store_address
    tcp = TCPStore(
        host,
        port,
        world.size,
        is_master=world.rank == 0 and not agent_hosts,
        timeout=timedelta(seconds=CONNECT_S),
        wait_for_workers=False,
        multi_tenant=True,
    )
    return cast("Store", PrefixStore(world.namespace, tcp))


@dataclass
class Awaited:
    """A key that the listener waits for."""

    key: str
    value: bytes = b""
    error: Exception | None = None
    _come: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it has a value or the store failed; False when the time is over first."""
        return self._come.wait(timeout_s)

    def fill(self, store: Store) -> None:
        """Block, in the listener's thread, until the key has a value."""
        try:
            store.wait([self.key], FOREVER)
            self.value = store.get(self.key)
        except RuntimeError as error:  # torch's: the store is gone
            self.error = error
        self._come.set()


class Board:
    """One rank's connection. `store` is for the calling thread; the rest has its own clients."""

    def __init__(self, world: World) -> None:
        self.store = connect(world)
        self._rank = world.rank
        self._pid = os.getpid()
        self._tasks: queue.SimpleQueue[Awaited | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._listen, args=(self.store.clone(),), daemon=True),
            threading.Thread(target=self._answer, args=(self.store.clone(),), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.leave)

    def expect(self, key: str) -> Awaited:
        """Begin to wait for a key."""
        awaited = Awaited(key)
        self._tasks.put(awaited)
        return awaited

    def find(self, key: str) -> bytes | None:
        """Read a key that may not be there."""
        return self.store.get(key) if self.store.check([key]) else None

    def find_lines(self, key: str) -> list[str]:
        """Read what was appended to a key, line by line."""
        return (self.find(key) or b"").decode().splitlines()

    def ask_places(self, ranks: Iterable[int]) -> dict[int, str]:
        """Ask living ranks where their main threads are; who is stopped or dead does not answer."""
        asked = list(ranks)[:MAX_ASKED]
        for rank in asked:
            self.store.queue_push(f"ask/{rank}", f"{self._rank}")
        places: dict[int, str] = {}
        deadline = time.monotonic() + ANSWER_S
        pause = threading.Event()
        while len(places) < len(asked) and time.monotonic() < deadline:
            for rank in asked:
                answer = None if rank in places else self.find(f"place/{rank}/{self._rank}")
                if answer is not None:
                    places[rank] = answer.decode()
                    self.store.delete_key(f"place/{rank}/{self._rank}")
            pause.wait(POLL_S)
        return places

    def leave(self) -> None:
        """Let the threads end; at interpreter shutdown none may be inside torch.

        A fork of the rank has none, and would speak on the rank's own connection.
        """
        if os.getpid() != self._pid:
            return
        self._tasks.put(None)
        with contextlib.suppress(RuntimeError):  # the store is gone, and the thread with it
            self.store.queue_push(f"ask/{self._rank}", "bye")
        for thread in self._threads:
            thread.join(LEAVE_S)

    def _listen(self, store: Store) -> None:
        while (awaited := self._tasks.get()) is not None:
            awaited.fill(store)

    def _answer(self, store: Store) -> None:
        store.set_timeout(FOREVER)
        with contextlib.suppress(RuntimeError):  # the store is gone
            while (who := store.queue_pop(f"ask/{self._rank}").decode()) != "bye":
                store.set(f"place/{self._rank}/{who}", find_main_thread_place())
