"""What people see: the only part of puffrun that draws. Everything goes to stderr."""

from puffrun.console.screen import Screen

__all__ = ["Screen"]
