"""The watchdog's mind: a pure state machine from observations to actions, and the blame."""

from puffrun.watch.blame import looks_like_victim, signal_name
from puffrun.watch.machine import WatchState, shift, step
from puffrun.watch.restart import AttemptResult, GiveUp, Restart, decide_restart
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
from puffrun.watch.verdict import Verdict, add_late_victims, conclude

__all__ = [
    "Action",
    "AgentLost",
    "AttemptResult",
    "Collect",
    "DeadChild",
    "Finish",
    "Forward",
    "GiveUp",
    "Hurry",
    "Observation",
    "RankExited",
    "RankRaised",
    "RankStarted",
    "RankView",
    "Restart",
    "Rules",
    "Signalled",
    "Stalled",
    "Stop",
    "Tick",
    "TreeEnded",
    "Verdict",
    "WatchState",
    "add_late_victims",
    "conclude",
    "decide_restart",
    "looks_like_victim",
    "shift",
    "signal_name",
    "step",
]
