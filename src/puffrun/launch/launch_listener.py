"""What the launcher tells, as it happens, to whoever draws it."""

from typing import Protocol

from puffrun.artifacts import ArtifactEvent
from puffrun.outcome import Outcome
from puffrun.plan import LaunchPlan


class LaunchListener(Protocol):
    """Implemented by the console; may be called from the pump's thread too."""

    def run_started(self, plan: LaunchPlan) -> None:
        """The run has a directory; nothing else has happened."""

    def artifact_event(self, event: ArtifactEvent) -> None:
        """Something happened to an artifact."""

    def ranks_starting(self, up: int, total: int) -> None:
        """So many ranks exist now."""

    def note(self, text: str) -> None:
        """Something worth a line happened."""

    def output_started(self) -> None:
        """The first output of a shown rank is about to appear."""

    def output_ended(self, *, mid_line: bool) -> None:
        """No more output of the ranks comes; the console's cursor may be within a line."""

    def ended(self, outcome: Outcome, plan: LaunchPlan) -> None:
        """The run is over and its report is written."""
