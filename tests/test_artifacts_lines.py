"""What the artifact phase shows on a terminal and in a file."""

import io
from pathlib import Path

import pytest

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
from puffrun.artifacts.build_failure import Failure
from puffrun.artifacts.freshness.reasons import StaleReason
from puffrun.artifacts.store.lock import Owner
from puffrun.console import Screen
from puffrun.console.artifact_lines import ArtifactScreen, render_event

ROOT = Path("/home/u/project")
STORE = ROOT / ".puffrun/artifacts/vis"
HEADER = (StaleReason("input-changed", "drive.h", "1", "2"),)
SINCE = 1_700_000_000_000_000_000
OWNER = Owner("alice", 4123, "node7", SINCE, str(STORE / "logs/a.log"))
FAILURE = Failure(
    name="vis",
    fingerprint="f",
    run_id="r",
    summary="cc exited 1",
    detail="`cc` exited 1",
    lines=("vis.c:88:5: \x1b[31merror:\x1b[0m unknown type", "   88 |     Vec3 origin;"),
    log_path=str(STORE / "logs/b.log"),
    hint="fix",
    started_at=0,
    ended_at=1_300_000_000,
)


@pytest.mark.parametrize(
    ("event", "lines"),
    [
        (Fresh("vis", STORE), ["fresh"]),
        (Stale("vis", HEADER), ["stale: drive.h changed"]),
        (Built("vis", 4.13, STORE), ["built in 4.1 s"]),
        (Shared("vis", 2.0, STORE), ["built by somebody else, after a wait of 2.0 s"]),
        (
            Installed("vis", (StaleReason("install", "bin/v", None, "is missing"),), STORE),
            ["installed again: bin/v is missing"],
        ),
        (Retrying("vis", HEADER), ["building again, for it changed meanwhile: drive.h changed"]),
        (Noted("vis", "no file locks here"), ["no file locks here"]),
        (
            Building("vis", 60.4, STORE / "logs/a.log"),
            [
                "building for 60 s",
                "log .puffrun/artifacts/vis/logs/a.log",
            ],
        ),
        (Waiting("vis", 1.02, None), ["waiting 1 s: being built by somebody else; Ctrl-C is safe"]),
        (Failed("vis", FAILURE, shared=False), ["failed after 1.3 s: cc exited 1"]),
        (
            Failed("vis", FAILURE, shared=True),
            ["failed after 1.3 s: cc exited 1, in the build that was waited for"],
        ),
    ],
)
def test_each_event_in_words(event: ArtifactEvent, lines: list[str]):
    indent = " " * len("artifact vis  ")
    expected = ["artifact vis  " + lines[0], *(indent + line for line in lines[1:])]
    assert render_event(event, ROOT) == expected


def test_waiting_names_who_builds_since_when_and_where_the_log_is():
    first, second = render_event(Waiting("vis", 12.3, OWNER), ROOT)
    assert first.startswith("artifact vis  waiting 12 s: being built by alice, pid 4123 on node7 ")
    assert second.strip() == "log .puffrun/artifacts/vis/logs/a.log   Ctrl-C is safe"


def show(events: list[ArtifactEvent], *, tty: bool) -> str:
    stream = io.StringIO()
    draw = ArtifactScreen(Screen(stream, tty=tty, color=False, width=100), shown_from=ROOT)
    for event in events:
        draw(event)
    return stream.getvalue()


def test_off_a_tty_waiting_is_said_once_and_every_ten_seconds():
    text = show([Waiting("vis", float(s), OWNER) for s in range(1, 32)], tty=False)
    shown = [line.split("waiting ")[1].split(" s")[0] for line in text.splitlines()[::2]]
    assert shown == ["1", "11", "21", "31"]


def test_off_a_tty_a_short_build_says_nothing_on_the_way_and_a_long_one_every_minute():
    short = show([Building("vis", float(s), STORE) for s in range(59)], tty=False)
    assert short == ""
    long = show([Building("vis", float(s), STORE) for s in range(130)], tty=False)
    assert [line for line in long.splitlines() if "building" in line] == [
        "puffrun  artifact vis  building for 60 s",
        "puffrun  artifact vis  building for 120 s",
    ]


def test_on_a_tty_one_live_line_names_all_that_goes_on_and_is_gone_at_the_end():
    events = [
        Building("a", 3.0, STORE),
        Building("b", 2.0, STORE),
        Built("a", 3.2, STORE),
        Built("b", 3.4, STORE),
    ]
    text = show(events, tty=True)
    assert "artifact a building 3 s, b building 2 s" in text
    last_redraw = text.rsplit("\r\x1b[2K", 1)[1]
    assert last_redraw == "puffrun  artifact b  built in 3.4 s\n"


def test_a_failure_shows_the_compilers_words_cleaned_and_the_log():
    text = show([Failed("vis", FAILURE, shared=False)], tty=False)
    assert text.splitlines() == [
        "puffrun  artifact vis  failed after 1.3 s: cc exited 1",
        "",
        "    vis.c:88:5: error: unknown type",
        "       88 |     Vec3 origin;",
        "    (all of it in .puffrun/artifacts/vis/logs/b.log)",
        "",
    ]
