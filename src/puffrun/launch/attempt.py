"""Watching one attempt: the mind. Observations go through `watch.step`; the hands carry it out."""

import os
import selectors
import signal
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from puffrun.diagnose import Lateness
from puffrun.evidence import HASTY, PATIENT, RankEvidence
from puffrun.hands import LocalHands, Session
from puffrun.launch.attempt_hang import find_hang
from puffrun.launch.event_log import EventLog
from puffrun.launch.lateness_clock import LatenessClock
from puffrun.launch.launch_listener import LaunchListener
from puffrun.launch.signal_inbox import SignalInbox
from puffrun.outcome import ErrorRecord
from puffrun.plan import LaunchPlan
from puffrun.rundir import RunDir
from puffrun.watch import (
    Action,
    Collect,
    Finish,
    Forward,
    Hurry,
    Observation,
    RankStarted,
    ReaderAwaited,
    Rules,
    Signalled,
    Stop,
    Tick,
    WatchState,
    shift,
    step,
)

HASTY_REASONS = ("Signalled", "RankExited", "RankRaised")  # the ranks fall apart, or a user waits
PATIENCE_S = 2.0  # after a success, for helpers of the ranks to leave by themselves
EXPLAIN_AFTER_S = 1.0  # an ending that takes longer is worth a line
LOOK_S = 1.0  # how often we look for what sends no event


@dataclass
class Attempt:
    """One attempt's loop. `state`, `evidence` and what the hands find are its results."""

    plan: LaunchPlan
    run_dir: RunDir
    session: Session
    inbox: SignalInbox
    events: EventLog
    listener: LaunchListener
    wake_fd: int
    started_s: float  # when the run began, for its time limit
    hands: LocalHands = field(init=False)
    state: WatchState = field(init=False)
    evidence: tuple[RankEvidence, ...] = ()
    stopped_at: int | None = None  # time.time_ns() when the kill began
    _explain_at_s: float | None = None

    def __post_init__(self) -> None:
        """Begin to listen and to count time."""
        rules = Rules(
            world_size=self.plan.world_size,
            exit_timeout_s=self.plan.exit_timeout_s,
            timeout_s=self.plan.timeout_s,
        )
        self.state = WatchState(rules, self.started_s)
        self._lateness = LatenessClock(self.plan.cwd, self.plan.world_size)
        self.hands = LocalHands(
            plan=self.plan,
            run_dir=self.run_dir,
            session=self.session,
            listener=self.listener,
            wake_fd=self.wake_fd,
            tell=self.observe,
            log_event=self.events.write,
        )

    @property
    def lateness(self) -> Lateness:
        """Which rank made the others wait, and for how long."""
        return self._lateness.lateness

    def run(self) -> None:
        """Loop until nothing of the attempt is left alive."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.hands, selectors.EVENT_READ)
            selector.register(self.inbox, selectors.EVENT_READ)
            while not self.state.finished:
                ready = {key.fileobj for key, _ in selector.select(self._timeout_s())}
                if self.hands in ready:
                    self.hands.hear()
                if self.inbox in ready:
                    self._read_inbox()
                self._look()
        self.hands.close()

    def _timeout_s(self) -> float:
        due = self.state.next_deadline_s()
        if due is None:
            return LOOK_S
        return min(LOOK_S, max(0.0, due - time.monotonic()))

    def _look(self) -> None:
        """Notice what sends no event: lost wake-ups, deadlines, who is late, samples."""
        self.hands.look()
        self.observe(Tick())
        if self._explain_at_s is not None and time.monotonic() >= self._explain_at_s:
            self._explain_at_s = None
            self._explain_ending()
        self.hands.sample()
        if not self.state.stopping:
            self._lateness.observe(len(self.state.running), time.monotonic(), self.hands.glance)

    def _explain_ending(self) -> None:
        if self.state.all_exited:
            return
        self.listener.output_ended(mid_line=bool(self.state.signals))  # the echo of ^C
        self.listener.note(
            f"ending the ranks: they have {self.plan.grace_s:g} s (--grace); Ctrl-C ends them now"
        )

    def observe(self, observation: Observation) -> None:
        """Take one observation through the state machine and do what it asks."""
        if not isinstance(observation, (Tick, ReaderAwaited)):
            self.events.write(type(observation).__name__, **_as_fields(observation))
        self.state, actions = step(self.state, observation, time.monotonic())
        for action in actions:
            self._act(action)
        if isinstance(observation, RankStarted):
            self.listener.ranks_starting(len(self.state.ranks), self.plan.world_size)

    def _act(self, action: Action) -> None:
        match action:
            case Collect(why):
                self._collect(why)
            case Stop():
                self.events.write("stop", grace_s=self.plan.grace_s)
                self.stopped_at = time.time_ns()
                self.hands.stop(PATIENCE_S if self.state.succeeded else 0.0)
                self._explain_at_s = time.monotonic() + EXPLAIN_AFTER_S
            case Hurry():
                self.hands.hurry()
            case Forward(signum):
                self.hands.forward(signum)
            case Finish():
                self.events.write("finish")

    def _collect(self, why: str) -> None:
        """Take the evidence of every living rank, before anything is signalled."""
        self.evidence = self.hands.collect(HASTY if why in HASTY_REASONS else PATIENT)
        states = {each.rank: each.native.state for each in self.evidence}
        hang = find_hang(self.state, self.evidence, self.plan)
        self.events.write("evidence", why=why, states=states, hang=hang and asdict(hang))

    def _read_inbox(self) -> None:
        taken = self.inbox.take()
        for signum in taken:
            if signum == signal.SIGTSTP:
                # Python tells of signals that came together by their numbers, not in their order
                if signal.SIGCONT not in taken and not self.state.stopping:
                    self._pause()
            elif signum != signal.SIGCONT:
                self.observe(Signalled(signum))

    def _pause(self) -> None:
        """Stop the whole run, then the launcher itself (Ctrl-Z); go on together (`fg`, `bg`).

        A SIGCONT that has come since comes only once: then there is nothing to wait for.
        """
        began_s = time.monotonic()
        self.events.write("paused")
        stopped = self.hands.pause()
        if not self.inbox.has(signal.SIGCONT):
            os.kill(os.getpid(), signal.SIGSTOP)
        # here somebody has sent SIGCONT
        paused_s = time.monotonic() - began_s
        self.hands.resume(stopped, paused_s)
        self.state = shift(self.state, paused_s)
        self.events.write("resumed", paused_s=paused_s)


def _as_fields(observation: Observation) -> dict[str, Any]:
    fields = dict(vars(observation))
    fields.pop("at", None)
    fields.pop("log_tail", None)
    record = fields.pop("record", None)
    if isinstance(record, ErrorRecord):
        fields |= {"rank": record.rank, "error": f"{record.type}: {record.message}"[:500]}
    return fields
