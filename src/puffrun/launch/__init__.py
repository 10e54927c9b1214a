"""Carries a plan out: starts the torchrun agent, pumps logs, watches, and ends everything."""

from puffrun.launch.launch_listener import LaunchListener
from puffrun.launch.run import launch
from puffrun.launch.signal_inbox import SignalInbox, catch_signals

__all__ = ["LaunchListener", "SignalInbox", "catch_signals", "launch"]
