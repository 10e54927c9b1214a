"""Carries a plan out: starts the torchrun agent, pumps logs, watches, and ends everything."""

from puffrun.launch.listener import LaunchListener
from puffrun.launch.run import launch
from puffrun.launch.signals import SignalInbox, catch_signals

__all__ = ["LaunchListener", "SignalInbox", "catch_signals", "launch"]
