"""What happens on this node, and what is done here: one node's ranks, observed and ended."""

from puffrun.hands.hands_listener import HandsListener
from puffrun.hands.local_hands import LocalHands
from puffrun.hands.node_findings import NodeFindings, RankFindings, RankTraces, as_processes
from puffrun.hands.session import Session, start_session

__all__ = [
    "HandsListener",
    "LocalHands",
    "NodeFindings",
    "RankFindings",
    "RankTraces",
    "Session",
    "as_processes",
    "start_session",
]
