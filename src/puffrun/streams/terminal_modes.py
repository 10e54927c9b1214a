"""What a program has switched on in its terminal, and how to switch it off again.

A program that is killed cannot do so: it leaves an alternate screen, a hidden cursor, a colour.
"""

import re

_SEQUENCE = re.compile(rb"\x1b\[(\??)([0-9;]*)([hlm])")
_PARTIAL = re.compile(rb"\x1b(?:\[\??[0-9;]{0,24})?\Z")
_MODES = {  # what is on when `h` was the last word; the cursor is hidden by `l`
    b"47": b"\x1b[?47l",
    b"1047": b"\x1b[?1047l",
    b"1049": b"\x1b[?1049l",
    b"1000": b"\x1b[?1000l",
    b"1002": b"\x1b[?1002l",
    b"1003": b"\x1b[?1003l",
    b"1006": b"\x1b[?1006l",
    b"2004": b"\x1b[?2004l",
}
_SHOW_CURSOR = b"\x1b[?25h"
_PLAIN = b"\x1b[0m"


class TerminalState:
    """Follows what is written to a terminal."""

    def __init__(self) -> None:
        self._partial = b""
        self._undo: dict[bytes, bytes] = {}

    def feed(self, data: bytes) -> None:
        """See what was written; a sequence may come in parts."""
        data = self._partial + data
        for private, numbers, end in _SEQUENCE.findall(data):
            if end == b"m":
                self._note(b"m", _PLAIN, on=numbers.rpartition(b";")[2].strip(b"0") != b"")
            elif private:
                for number in numbers.split(b";"):
                    self._note_mode(number, on=end == b"h")
        partial = _PARTIAL.search(data)
        self._partial = partial[0] if partial else b""

    def _note_mode(self, number: bytes, *, on: bool) -> None:
        if number == b"25":
            self._note(number, _SHOW_CURSOR, on=not on)
        elif number in _MODES:
            self._note(number, _MODES[number], on=on)

    def _note(self, name: bytes, undo: bytes, *, on: bool) -> None:
        if on:
            self._undo.setdefault(name, undo)
        else:
            self._undo.pop(name, None)

    @property
    def undo(self) -> bytes:
        """What switches off all that is on; empty when nothing is."""
        return b"".join(self._undo.values())
