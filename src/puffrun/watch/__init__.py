"""The watchdog's mind: a pure state machine from observations to actions, and the blame."""

from puffrun.watch.machine import WatchState, step
from puffrun.watch.values import (
    Action,
    AgentLost,
    Collect,
    DeadChild,
    Finish,
    Forward,
    Hurry,
    Observation,
    RankExited,
    RankRaised,
    RankStarted,
    RankView,
    Rules,
    Signalled,
    Stalled,
    Stop,
    Tick,
    TreeEnded,
)
from puffrun.watch.verdict import Verdict, conclude

__all__ = [
    "Action",
    "AgentLost",
    "Collect",
    "DeadChild",
    "Finish",
    "Forward",
    "Hurry",
    "Observation",
    "RankExited",
    "RankRaised",
    "RankStarted",
    "RankView",
    "Rules",
    "Signalled",
    "Stalled",
    "Stop",
    "Tick",
    "TreeEnded",
    "Verdict",
    "WatchState",
    "conclude",
    "step",
]
