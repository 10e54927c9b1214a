"""Colour as a help, never as a message: bold, dim, cyan for names, red for the cause."""

from dataclasses import dataclass

_RESET = "\x1b[0m"


@dataclass(frozen=True)
class Paint:
    """Paints text, or leaves it as it is where colour is not wanted."""

    color: bool

    def bold(self, text: str) -> str:
        """Make a text bold."""
        return self._in("1", text)

    def dim(self, text: str) -> str:
        """Step back: what one may overlook."""
        return self._in("2", text)

    def red(self, text: str) -> str:
        """The cause."""
        return self._in("31", text)

    def cyan(self, text: str) -> str:
        """A name."""
        return self._in("36", text)

    def _in(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}{_RESET}" if self.color and text else text
