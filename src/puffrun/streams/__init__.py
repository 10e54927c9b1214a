"""The ranks' standard streams: opened, copied, typed into, and put in order at the end."""

from puffrun.streams.keyboard import Keyboard, NoKeyboard, start_keyboard
from puffrun.streams.pump import Pump
from puffrun.streams.rank_streams import STDIN, STDOUT, RankStreams, copy_window_size, open_streams

__all__ = [
    "STDIN",
    "STDOUT",
    "Keyboard",
    "NoKeyboard",
    "Pump",
    "RankStreams",
    "copy_window_size",
    "open_streams",
    "start_keyboard",
]
