"""What a program left switched on in its terminal."""

import pytest

from puffrun.streams.terminal_modes import TerminalState

FULL = b"\x1b[?1049h\x1b[?25l\x1b[1;31mhello"


@pytest.mark.parametrize(
    ("shown", "undo"),
    [
        (b"plain \x1b[2J", b""),
        (FULL, b"\x1b[?1049l\x1b[?25h\x1b[0m"),
        (FULL + b"\x1b[0m\x1b[?25h\x1b[?1049l", b""),
        (b"\x1b[31mred\x1b[m", b""),
        (b"\x1b[1;0m", b""),
        (b"\x1b[?1000;1006h", b"\x1b[?1000l\x1b[?1006l"),
        (b"\x1b[4h\x1b[?7l", b""),
    ],
)
def test_only_what_is_on_is_switched_off(shown, undo):
    at_once, in_parts = TerminalState(), TerminalState()
    at_once.feed(shown)
    for index in range(len(shown)):
        in_parts.feed(shown[index : index + 1])
    assert at_once.undo == in_parts.undo == undo
