"""The screen: whole lines, one live line on a TTY, and never a word on stdout."""
