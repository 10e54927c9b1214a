"""Watching one attempt: turns what happens into observations, and the actions into effects."""

import os
import select
import selectors
import signal
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from puffrun import diagnose
from puffrun.launch.errors import empty_fifo, read_error, read_errors
from puffrun.launch.events import EventLog
from puffrun.launch.hang import find_hang
from puffrun.launch.keyboard import start_keyboard
from puffrun.launch.listener import LaunchListener
from puffrun.launch.pump import Pump
from puffrun.launch.sampler import Sampler
from puffrun.launch.session import Session
from puffrun.launch.signals import SignalInbox
from puffrun.launch.streams import STDIN, STDOUT, copy_window_size
from puffrun.naming import describe_exit
from puffrun.outcome import ErrorRecord
from puffrun.plan import LaunchPlan
from puffrun.process import GuardedExit, ProcStat, find_stat, send_signal
from puffrun.rundir import RunDir
from puffrun.watch import (
    Action,
    AgentLost,
    Collect,
    Finish,
    Forward,
    Hurry,
    Observation,
    RankExited,
    RankRaised,
    RankStarted,
    Rules,
    Signalled,
    Stop,
    Tick,
    TreeEnded,
    WatchState,
    await_reader,
    shift,
    step,
)

HASTY_REASONS = ("Signalled", "RankExited", "RankRaised")  # the ranks fall apart, or a user waits
GUARDIAN_PATIENCE_S = 8.0  # beyond the grace period, for a guardian to say that all has ended
PATIENCE_S = 2.0  # after a success, for helpers of the ranks to leave by themselves
EXPLAIN_AFTER_S = 1.0  # an ending that takes longer is worth a line
RECORDING_S = 1.0  # at most, for a rank to finish the record of its exception
AGENT_END_S = 1.0  # at most, for the guardian to say how the agent ended
SAMPLE_S = 1.0  # how often /proc is read for dead children, stalls and stopped ranks


@dataclass
class Attempt:
    """One attempt's loop. `state` and `ended` are its results."""

    plan: LaunchPlan
    run_dir: RunDir
    session: Session
    inbox: SignalInbox
    events: EventLog
    listener: LaunchListener
    wake_fd: int
    started_s: float  # when the run began, for its time limit
    pump: Pump = field(init=False)
    state: WatchState = field(init=False)
    ended: GuardedExit | None = None
    evidence: tuple[diagnose.RankEvidence, ...] = ()
    stopped_at: int | None = None  # time.time_ns() when the kill began
    _leaders: dict[int, ProcStat] = field(default_factory=dict)
    _seen_errors: set[int] = field(default_factory=set)
    _crash: str | None = None
    _agent_returncode: int | None = None
    _give_up_s: float | None = None
    _explain_at_s: float | None = None
    _litter: list[Path] = field(default_factory=list)  # what ranks cannot remove once they are dead
    _looked_at_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Begin to copy output and to count time."""
        self.pump = Pump(
            self.session.streams.channels,
            on_output=self.listener.output_started,
            on_trouble=self.listener.note,
        )
        self._keyboard = start_keyboard(STDIN, self.session.streams.keyboard_fd)
        rules = Rules(
            world_size=self.plan.world_size,
            exit_timeout_s=self.plan.exit_timeout_s,
            timeout_s=self.plan.timeout_s,
        )
        self.state = WatchState(rules, self.started_s)
        self._oom = diagnose.OomWatch()
        self._sampler = Sampler(self.plan, self.run_dir)

    def run(self) -> None:
        """Loop until nothing of the attempt is left alive."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.session.link, selectors.EVENT_READ, self._read_link)
            selector.register(self.session.guarded, selectors.EVENT_READ, self._read_guarded)
            selector.register(self.inbox, selectors.EVENT_READ, self._read_inbox)
            selector.register(self.wake_fd, selectors.EVENT_READ, lambda: empty_fifo(self.wake_fd))
            while not self.state.finished:
                ready = selector.select(self._timeout_s())
                # the link first: a rank must be known before its error or its signal is
                for key, _ in sorted(ready, key=lambda item: item[0].data != self._read_link):
                    key.data()
                if self.session.agent_gone and self.session.link.fileno() in selector.get_map():
                    selector.unregister(self.session.link)
                self._look()
        self._keyboard.stop()
        self.pump.finish()
        for path in self._litter:
            path.unlink(missing_ok=True)
        self.listener.output_ended(mid_line=self.pump.mid_line)
        self.session.link.close()

    @property
    def lateness(self) -> diagnose.Lateness:
        """Which rank made the others wait, and for how long."""
        return self._sampler.lateness

    def _timeout_s(self) -> float:
        due = self.state.next_deadline_s()
        if due is None:
            return SAMPLE_S
        return min(SAMPLE_S, max(0.0, due - time.monotonic()))

    def _look(self) -> None:
        """Notice what sends no event: deadlines, errors whose wake-up was lost, samples."""
        self._read_errors()
        before_s, self._looked_at_s = self._looked_at_s, time.monotonic()
        if self.pump.is_full:  # nobody reads: the ranks that are shown have to wait
            self.state = await_reader(self.state, self._looked_at_s - before_s)
        self.observe(Tick())
        if self._explain_at_s is not None and time.monotonic() >= self._explain_at_s:
            self._explain_at_s = None
            if not self.state.all_exited:
                self.listener.output_ended(mid_line=bool(self.state.signals))  # the echo of ^C
                self.listener.note(
                    f"ending the ranks: they have {self.plan.grace_s:g} s (--grace); "
                    "Ctrl-C ends them now"
                )
        if self._give_up_s is not None and time.monotonic() >= self._give_up_s:
            self._give_up_s = None
            self.session.guarded.replace()  # somebody has stopped it (SIGSTOP): it never answers
        if self.session.guarded.lost and self.ended is None:
            self._take_over()
        if not self.state.stopping and not self.session.agent_gone:
            self._sample()

    def _sample(self) -> None:
        found = self._sampler.sample(
            self._living_pids(), time.monotonic(), is_console_full=self.pump.is_full
        )
        for rank, returncode in self._sampler.unreported.items():
            if rank in self.state.running:
                self._hear_exited(rank, returncode, time.time_ns())
        for observation in found:
            self.observe(observation)

    def observe(self, observation: Observation) -> None:
        """Take one observation through the state machine and do what it asks."""
        if not isinstance(observation, Tick):
            self.events.write(type(observation).__name__, **_as_fields(observation))
        self.state, actions = step(self.state, observation, time.monotonic())
        for action in actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Collect(why):
                self._collect(why)
            case Stop():
                self.events.write("stop", grace_s=self.plan.grace_s)
                self._name_leaders()
                self.stopped_at = time.time_ns()
                patience_s = PATIENCE_S if self.state.succeeded else 0.0
                self.session.guarded.stop(self.plan.grace_s, patience_s)
                self._give_up_s = time.monotonic() + self.plan.grace_s + GUARDIAN_PATIENCE_S
                self._explain_at_s = time.monotonic() + EXPLAIN_AFTER_S
            case Hurry():
                self.session.guarded.kill()
                self._give_up_s = time.monotonic() + GUARDIAN_PATIENCE_S
            case Forward(signum):
                for rank in self.state.running:
                    if rank in self._leaders:
                        send_signal(self._leaders[rank], signum)
            case Finish():
                self.events.write("finish")

    def _name_leaders(self) -> None:
        views = self.state.ranks.values()
        self.session.guarded.set_leaders(
            [stat.pid for stat in self._leaders.values()],
            leaving=[view.pid for view in views if view.error is not None and not view.exited],
            ours=self.session.own_pids,
        )

    def _collect(self, why: str) -> None:
        """Take the evidence of every living rank, before anything is signalled."""
        views = self.state.ranks
        asked = {r: pid for r, pid in self._living_pids().items() if views[r].error is None}
        patience = diagnose.HASTY if why in HASTY_REASONS else diagnose.PATIENT
        self.evidence = diagnose.collect_evidence(self.run_dir, asked, patience)
        self._litter = diagnose.find_litter(asked.values())
        self._await_errors()
        states = {each.rank: each.native.state for each in self.evidence}
        hang = find_hang(self.state, self.evidence, self.plan)
        self.events.write("evidence", why=why, states=states, hang=hang and asdict(hang))

    def _await_errors(self) -> None:
        """Give a rank that was seen recording its exception the time to finish that."""
        raising = {e.rank for e in self.evidence if diagnose.ends_with_exception(e)}
        deadline = time.monotonic() + RECORDING_S
        while not raising <= set(read_errors(self.run_dir, self.state)):
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self.wake_fd], [], [], left_s)[0]:
                return
            empty_fifo(self.wake_fd)

    def _living_pids(self) -> dict[int, int]:
        return {rank: self.state.ranks[rank].pid for rank in self.state.running}

    # what the agent says

    def _read_link(self) -> None:
        for message in self.session.receive():
            self._hear_agent(message)
        if self.session.agent_gone and not (self.state.all_exited or self.state.stopping):
            self._lose_agent()

    def _hear_agent(self, message: dict[str, Any]) -> None:
        if "started" in message:
            self._hear_started(message)
        elif "exited" in message:
            self._hear_exited(message["exited"], message["returncode"], message["at"])
        elif "ready" in message:
            self._hear_ready(message)
        elif "crashed" in message:
            self._crash = str(message["crashed"])

    def _hear_ready(self, message: dict[str, Any]) -> None:
        refusal = message.get("not_preloaded")
        self.session.zygote_pid = message.get("zygote")
        self.events.write("agent-ready", zygote=self.session.zygote_pid, not_preloaded=refusal)
        if refusal is not None:
            self.listener.note(f"not preloaded, each rank imports torch by itself: {refusal}")

    def _hear_started(self, message: dict[str, Any]) -> None:
        rank, pid = message["started"], message["pid"]
        stat = find_stat(pid)
        if stat is not None:
            self._leaders[rank] = stat
        self._name_leaders()
        self.observe(
            RankStarted(rank, message["local_rank"], self.plan.node_rank, pid, message["at"])
        )
        self.listener.ranks_starting(len(self.state.ranks), self.plan.world_size)

    def _hear_exited(self, rank: int, returncode: int | None, at: int) -> None:
        self._read_errors()  # written before the exit, so it must be seen before it
        tail: tuple[str, ...] = ()
        if returncode != 0:
            self.pump.sync()
            tail = diagnose.read_log_tail(self.run_dir.log_path(rank))
        oom = returncode == -signal.SIGKILL and self._oom.was_killed(self.state.ranks[rank].pid)
        self.observe(RankExited(rank, returncode, at, tail, oom=oom))
        if self.state.stopping:
            self.session.guarded.look()

    def _lose_agent(self) -> None:
        if self._crash is None and self._agent_returncode is None:
            self._read_guarded(AGENT_END_S)  # says how, at the same moment
        if not self.state.stopping:
            code = self._agent_returncode
            how = "ended" if code is None else describe_exit(code)
            self.observe(AgentLost(self._crash or f"the torchrun agent {how} before its ranks"))

    # what the guardian says

    def _read_guarded(self, timeout_s: float = 0.0) -> None:
        for message in self.session.guarded.receive(timeout_s):
            if "exited" in message:
                self._agent_returncode = message["exited"]
            elif "reaped" in message:
                self._hear_reaped(*message["reaped"])
            elif "ended" in message:
                self.ended = self.session.guarded.wait(10.0)
                self._finish()

    def _hear_reaped(self, pid: int, returncode: int) -> None:
        """Hear of an orphan's end: after the agent's death, the ranks' statuses come this way."""
        for rank, view in self.state.ranks.items():
            if view.pid == pid and not view.exited:
                self._hear_exited(rank, returncode, time.time_ns())

    def _take_over(self) -> None:
        if not self.state.stopping:
            self.observe(AgentLost("the guardian of this run was killed"))
        self.ended = self.session.guarded.wait(self.plan.grace_s + 30.0)
        self._finish()

    def _finish(self) -> None:
        while messages := self.session.receive():  # the agent is dead: all it said is here already
            for message in messages:
                self._hear_agent(message)
        leftovers = self.ended.leftovers if self.ended else ()
        self.observe(TreeEnded(tuple(stat.pid for stat in leftovers)))

    # signals, errors

    def _read_inbox(self) -> None:
        taken = self.inbox.take()
        for signum in taken:
            if signum == signal.SIGWINCH:
                copy_window_size(STDOUT, self.session.streams.tty_fds)
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
        stopped = self.session.guarded.pause()
        if not self.inbox.has(signal.SIGCONT):
            os.kill(os.getpid(), signal.SIGSTOP)
        # here somebody has sent SIGCONT
        self.session.guarded.resume(stopped)
        paused_s = time.monotonic() - began_s
        self.state = shift(self.state, paused_s)
        self._sampler.shift(paused_s)
        self.events.write("resumed", paused_s=paused_s)

    def _read_errors(self) -> None:
        """Read what the ranks have recorded since; of several, the earliest first."""
        found = []
        for rank in self.state.running:
            record = None if rank in self._seen_errors else read_error(self.run_dir, rank)
            if record is not None and record.pid == self.state.ranks[rank].pid:
                found.append(record)
        for record in sorted(found, key=lambda each: each.at):
            self._seen_errors.add(record.rank)
            self.observe(RankRaised(record))


def _as_fields(observation: Observation) -> dict[str, Any]:
    fields = dict(vars(observation))
    fields.pop("at", None)
    fields.pop("log_tail", None)
    record = fields.pop("record", None)
    if isinstance(record, ErrorRecord):
        fields |= {"rank": record.rank, "error": f"{record.type}: {record.message}"[:500]}
    return fields
