"""What the artifact phase shows: two lines for a build, one for a fresh artifact."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from puffrun.artifacts.artifact_events import (
    ArtifactEvent,
    Building,
    Built,
    Failed,
    Fresh,
    Installed,
    Noted,
    Retrying,
    Shared,
    Stale,
    Waiting,
)
from puffrun.artifacts.build_failure import SHOWN_LINES
from puffrun.artifacts.freshness.reasons import render_reasons
from puffrun.artifacts.store.lock import describe_owner
from puffrun.console.card.plan_facts import relative_path
from puffrun.console.screen import Screen
from puffrun.console.text import clean_line, render_duration

WAITING_EVERY_S = 10.0  # off a TTY, where nothing is redrawn
BUILDING_EVERY_S = 60.0
INDENT = "    "


class ArtifactScreen:
    """Draws artifact events on a screen; paths are shown relative to `shown_from`."""

    def __init__(self, screen: Screen, *, shown_from: Path) -> None:
        self._screen = screen
        self._shown_from = shown_from
        self._said_at_s: dict[str, float] = {}
        self._going_on: dict[str, str] = {}

    def __call__(self, event: ArtifactEvent) -> None:
        """Show one event."""
        if isinstance(event, Waiting):
            self._show_waiting(event)
        elif isinstance(event, Building):
            self._show_building(event)
        else:
            self._show_step(event)

    def _show_step(self, event: ArtifactEvent) -> None:
        self._said_at_s.pop(event.name, None)
        self._going_on.pop(event.name, None)
        for line in render_event(event, self._shown_from):
            self._screen.say(line)
        if isinstance(event, Failed):
            self._screen.say_lines(render_failure(event, self._shown_from))
        self._show_live()

    def _show_waiting(self, event: Waiting) -> None:
        self._show_now_and_then(event, event.waited_s, WAITING_EVERY_S)
        self._going_on[event.name] = f"{event.name} waiting {event.waited_s:.0f} s"
        self._show_live()

    def _show_building(self, event: Building) -> None:
        self._said_at_s.setdefault(event.name, 0.0)  # a short build says nothing on the way
        self._show_now_and_then(event, event.elapsed_s, BUILDING_EVERY_S)
        self._going_on[event.name] = f"{event.name} building {event.elapsed_s:.0f} s"
        self._show_live()

    def _show_now_and_then(self, event: ArtifactEvent, at_s: float, every_s: float) -> None:
        said_at_s = self._said_at_s.get(event.name)
        if said_at_s is None or (not self._screen.tty and at_s >= said_at_s + every_s):
            self._said_at_s[event.name] = at_s
            for line in render_event(event, self._shown_from):
                self._screen.say(line)

    def _show_live(self) -> None:
        if self._going_on:
            self._screen.live("artifact " + ", ".join(self._going_on.values()))
        else:
            self._screen.clear_live()


def render_event(event: ArtifactEvent, shown_from: Path) -> list[str]:
    """Say one event in lines that stand after `puffrun`."""
    first, *more = _WORDS[type(event)](event, shown_from)
    start = f"artifact {event.name}  "
    return [start + first, *(" " * len(start) + line for line in more)]


def render_failure(event: Failed, shown_from: Path) -> list[str]:
    """Show what the build printed last, as it is, and where all of it is."""
    failure = event.failure
    if not failure.lines:
        return []
    log = relative_path(failure.log_path, shown_from)
    most = f"last {SHOWN_LINES} lines; " if len(failure.lines) >= SHOWN_LINES else ""
    body = [INDENT + clean_line(line) for line in failure.lines]
    return ["", *body, f"{INDENT}({most}all of it in {log})", ""]


def _say_waiting(event: Waiting, shown_from: Path) -> list[str]:
    waited = f"waiting {event.waited_s:.0f} s"
    if event.owner is None:
        return [f"{waited}: being built by somebody else; Ctrl-C is safe"]
    log = relative_path(event.owner.log_path, shown_from)
    return [
        f"{waited}: being built by {describe_owner(event.owner)}",
        f"log {log}   Ctrl-C is safe",
    ]


def _say_failed(event: Failed, _shown_from: Path) -> list[str]:
    after = render_duration(event.failure.duration_s)
    where = ", in the build that was waited for" if event.shared else ""
    return [f"failed after {after}: {event.failure.summary}{where}"]


_WORDS: dict[type, Callable[[Any, Path], list[str]]] = {
    Fresh: lambda _event, _from: ["fresh"],
    Stale: lambda event, _from: [f"stale: {render_reasons(event.reasons)}"],
    Waiting: _say_waiting,
    Building: lambda event, shown_from: [
        f"building for {event.elapsed_s:.0f} s",
        f"log {relative_path(event.log_path, shown_from)}",
    ],
    Retrying: lambda event, _from: [
        f"building again, for it changed meanwhile: {render_reasons(event.reasons)}"
    ],
    Built: lambda event, _from: [f"built in {render_duration(event.duration_s)}"],
    Shared: lambda event, _from: [
        f"built by somebody else, after a wait of {render_duration(event.waited_s)}"
    ],
    Installed: lambda event, _from: [f"installed again: {render_reasons(event.reasons)}"],
    Failed: _say_failed,
    Noted: lambda event, _from: [event.text],
}
