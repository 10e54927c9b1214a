"""One attempt: the build command below a guardian, its output straight to a file."""

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from puffrun.artifacts.recipe import Recipe
from puffrun.artifacts.stop_token import StopToken
from puffrun.process import Guarded, GuardedExit, start_guarded

GRACE_S = 5.0
KILL_TIMEOUT_S = 30.0  # from SIGKILL to the guardian's last word, beyond which it is lost
TICK_S = 1.0
# compiler caches that stay behind on purpose and write nothing into the build
SPARED_DAEMONS = ("sccache", "distccd", "ccache")


@dataclass(frozen=True)
class AttemptEnd:
    """How the command ended.

    `error`: it could not be started, or something survived SIGKILL. `lost`: its guardian was
    killed, and the command with it.
    """

    why: Literal["exit", "timeout", "stop", "error", "lost"]
    returncode: int | None = None
    error: str = ""


def run_attempt(
    recipe: Recipe,
    log_path: Path,
    *,
    timeout_s: float,
    lock_fd: int | None,
    stop: StopToken,
    tick: Callable[[float], None],
) -> AttemptEnd:
    """Run a build command to its end; `tick` is called about every second with the time it took.

    When this returns nothing of the command is running. Should this process be killed, the
    guardian ends the command, and only then the lock is free.

    Raises:
        OSError: the log could not be written.
    """
    started = time.monotonic()
    with _open_log(log_path) as log_fd:
        try:
            guarded = start_guarded(
                recipe.argv,
                cwd=recipe.cwd,
                env=recipe.env,
                stdout=log_fd,
                stderr=log_fd,
                keep_fds=() if lock_fd is None else (lock_fd,),
                grace_s=GRACE_S,
                spare=SPARED_DAEMONS,
            )
        except OSError as error:
            if error.errno is None:  # not the kernel's word: the guardian was killed on the way
                return AttemptEnd("lost")
            return AttemptEnd("error", error=f"could not be started: {error.strerror or error}")
    why: Literal["exit", "timeout", "stop"] = "exit"
    try:
        end = _await_end(guarded, started, timeout_s, stop, tick)
        if end is None:
            why = "stop" if stop.is_set() else "timeout"
            end = _stop(guarded, stop)
    except BaseException:
        guarded.kill()
        guarded.wait(KILL_TIMEOUT_S)
        raise
    if end is None or end.leftovers:
        return AttemptEnd("error", error="left a process behind that survived SIGKILL")
    is_lost = why == "exit" and end.returncode is None
    return AttemptEnd("lost" if is_lost else why, end.returncode)


@contextmanager
def _open_log(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def _await_end(
    guarded: Guarded,
    started: float,
    timeout_s: float,
    stop: StopToken,
    tick: Callable[[float], None],
) -> GuardedExit | None:
    """Wait for the end of the command; None when it must be stopped instead."""
    deadline = started + timeout_s
    next_tick = started
    while True:
        now = time.monotonic()
        if stop.is_set() or now >= deadline:
            return None
        if now >= next_tick:
            tick(now - started)
            next_tick = now + TICK_S
        patience_s = min(next_tick, deadline) - now
        select.select([guarded.fileno(), stop.fileno()], [], [], patience_s)
        end = guarded.wait(0.0)
        if end is not None:
            return end


def _stop(guarded: Guarded, stop: StopToken) -> GuardedExit | None:
    """End the command and all below it: SIGTERM, the grace period or a second request, SIGKILL."""
    guarded.stop()
    deadline = time.monotonic() + GRACE_S
    while (now := time.monotonic()) < deadline:
        watched = [guarded.fileno(), stop.hurry_fileno()]
        ready, _, _ = select.select(watched, [], [], deadline - now)
        end = guarded.wait(0.0)
        if end is not None:
            return end
        if stop.hurry_fileno() in ready:
            break
    guarded.kill()
    return guarded.wait(KILL_TIMEOUT_S)
