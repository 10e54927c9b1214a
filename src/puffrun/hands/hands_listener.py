"""What the hands tell, as it happens, to whoever draws it."""

from typing import Protocol


class HandsListener(Protocol):
    """Implemented by the console; may be called from the pump's thread too."""

    def note(self, text: str) -> None:
        """Something worth a line happened."""

    def output_started(self) -> None:
        """The first output of a shown rank is about to appear."""

    def output_ended(self, *, mid_line: bool) -> None:
        """No more output of the ranks comes; the console's cursor may be within a line."""
