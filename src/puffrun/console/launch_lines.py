"""What a launch shows while it goes on and when it ends."""

import signal
from dataclasses import replace
from pathlib import Path

from puffrun.artifacts import ArtifactEvent
from puffrun.console.artifact_lines import ArtifactScreen
from puffrun.console.card.card import render_card, render_title
from puffrun.console.card.plan_facts import facts_of
from puffrun.console.screen import Screen
from puffrun.console.text import render_count
from puffrun.outcome import Outcome
from puffrun.plan import LaunchPlan
from puffrun.rundir import RunDir


class LaunchScreen:
    """Draws what the launcher tells; paths are shown relative to `shown_from`."""

    def __init__(self, screen: Screen, *, shown_from: Path) -> None:
        self._screen = screen
        self._shown_from = shown_from
        self._artifacts = ArtifactScreen(screen, shown_from=shown_from)

    def run_started(self, plan: LaunchPlan) -> None:
        """Name the run, and what of an outer launcher's environment it does not take over."""
        self._screen.say(render_title(facts_of(plan, self._shown_from)))
        ignored = "  ".join(f"{name}={value}" for name, value in plan.env_ignored)
        if ignored:
            self._screen.say(f"ignored {ignored} (left over from another launcher)")

    def ranks_starting(self, up: int, total: int) -> None:
        """Show how many ranks are up, until all are."""
        if up < total:
            self._screen.live(f"starting {render_count(total, 'rank')}, {up} up")
        else:
            self._screen.clear_live()

    def artifact_event(self, event: ArtifactEvent) -> None:
        """Show what happened to an artifact."""
        self._artifacts(event)

    def output_started(self) -> None:
        """Make way for the program's own output."""
        self._screen.clear_live()

    def output_ended(self, *, mid_line: bool) -> None:
        """Take the cursor over from the program, which may have left it within a line."""
        self._screen.note_cursor(mid_line=mid_line)

    def note(self, text: str) -> None:
        """Say something that happened on the way."""
        self._screen.say(text)

    def ended(self, outcome: Outcome, plan: LaunchPlan) -> None:
        """Draw how the run ended."""
        if outcome.kind == "artifact-failed" and outcome.cause:
            # the build's own lines stand above already
            self._screen.error(outcome.cause.summary, _hint_rebuild(outcome, plan))
            return
        if outcome.cause and (outcome.cause.kind, outcome.cause.signal) == ("stop", signal.SIGINT):
            self._screen.note_cursor(mid_line=True)  # the terminal has echoed ^C
        facts = facts_of(plan, self._shown_from)
        if not RunDir(plan.run_dir).report_path.is_file():  # a full disk, `rm -r`
            facts = replace(facts, report_command="")
        card = render_card(outcome, facts, self._screen.width, paint=self._screen.paint)
        self._screen.say_lines(card)


def _hint_rebuild(outcome: Outcome, plan: LaunchPlan) -> str:
    hint = outcome.cause.detail.get("hint") if outcome.cause else None
    failed = " ".join(result.name for result in outcome.artifacts if result.state == "failed")
    return str(hint or f"fix the source, then `{plan.build_command} {failed}`")
