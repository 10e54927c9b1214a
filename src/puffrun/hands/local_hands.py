"""This node's hands: what its ranks do becomes observations, what the mind asks becomes effects.

The mind (`launch/attempt.py`) decides, and knows no process; the hands know theirs, and decide
nothing but how. Whatever passes between the two is a frozen value.
"""

import select
import selectors
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from puffrun.diagnose import ends_with_exception
from puffrun.evidence import (
    OomWatch,
    Patience,
    RankEvidence,
    collect_evidence,
    find_litter,
    read_log_tail,
)
from puffrun.hands.hands_listener import HandsListener
from puffrun.hands.node_findings import NodeFindings, RankFindings, find_about, find_traces
from puffrun.hands.recorded_errors import empty_fifo, read_error, read_errors
from puffrun.hands.roster import LocalRank, Roster
from puffrun.hands.sampler import Sampler
from puffrun.hands.session import Session
from puffrun.naming import describe_exit
from puffrun.outcome import Cause, ErrorRecord
from puffrun.plan import LaunchPlan
from puffrun.process import GuardedExit, ProcStat, find_stat, send_signal
from puffrun.rundir import RunDir
from puffrun.streams import STDIN, STDOUT, Pump, copy_window_size, start_keyboard
from puffrun.watch import (
    AgentLost,
    Observation,
    RankExited,
    RankRaised,
    RankStarted,
    ReaderAwaited,
    TreeEnded,
)

GUARDIAN_PATIENCE_S = 8.0  # beyond the grace period, for a guardian to say that all has ended
TAKEOVER_PATIENCE_S = 30.0  # beyond the grace period, to end what a killed guardian has left
RECORDING_S = 1.0  # at most, for a rank to finish the record of its exception
AGENT_END_S = 1.0  # at most, for the guardian to say how the agent ended


@dataclass(eq=False)
class LocalHands:
    """One attempt's ranks on this node. `tell` takes each observation, as it is made."""

    plan: LaunchPlan
    run_dir: RunDir
    session: Session
    listener: HandsListener
    wake_fd: int
    tell: Callable[[Observation], None]
    log_event: Callable[..., None]
    roster: Roster = field(init=False)
    pump: Pump = field(init=False)
    _stopping: bool = False
    _link_ended: bool = False
    _ended: GuardedExit | None = None
    _crash: str | None = None
    _agent_returncode: int | None = None
    _give_up_s: float | None = None
    _litter: list[Path] = field(default_factory=list)  # what ranks cannot remove once they are dead
    _looked_at_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Begin to copy output and to listen."""
        self.roster = Roster(self.plan.ranks_per_node)
        self.pump = Pump(
            self.session.streams.channels,
            on_output=self.listener.output_started,
            on_trouble=self.listener.note,
        )
        self._keyboard = start_keyboard(STDIN, self.session.streams.keyboard_fd)
        self._oom = OomWatch()
        self._sampler = Sampler(self.plan, self.run_dir)
        self._selector = selectors.EpollSelector()
        for source in (self.session.link, self.session.guarded, self.wake_fd):
            self._selector.register(source, selectors.EVENT_READ)

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to `hear`."""
        return self._selector.fileno()

    def hear(self) -> None:
        """Take in what has been said: the link first, for a rank must be known before its end."""
        empty_fifo(self.wake_fd)
        self._read_link()
        self._read_guarded()

    def look(self) -> None:
        """Notice what sends no event: errors whose wake-up was lost, a guardian that is gone."""
        self._read_errors()
        before_s, self._looked_at_s = self._looked_at_s, time.monotonic()
        if self.pump.is_full:  # nobody reads: the ranks that are shown have to wait
            self.tell(ReaderAwaited(self._looked_at_s - before_s))
        if self._give_up_s is not None and time.monotonic() >= self._give_up_s:
            self._give_up_s = None
            self.session.guarded.replace()  # somebody has stopped it (SIGSTOP): it never answers
        if self.session.guarded.lost and self._ended is None:
            self._take_over()

    def sample(self) -> None:
        """Notice dead children, stopped ranks and stalls, if it is time to."""
        if self._stopping or self.session.agent_gone:
            return
        found = self._sampler.sample(
            self.roster.living_pids, time.monotonic(), is_console_full=self.pump.is_full
        )
        for rank, returncode in self._sampler.unreported.items():
            if not self.roster[rank].exited:
                self._hear_exited(rank, returncode, time.time_ns())
        for observation in found:
            self.tell(observation)

    # what the mind asks

    def collect(self, patience: Patience) -> tuple[RankEvidence, ...]:
        """Take the evidence of every living rank, before anything is signalled."""
        asked = {each.rank: each.pid for each in self.roster.living if not each.raised}
        evidence = collect_evidence(self.run_dir, asked, patience)
        self._litter = find_litter(asked.values())
        self._await_errors({e.rank for e in evidence if ends_with_exception(e)})
        return evidence

    def glance(self, patience: Patience) -> tuple[RankEvidence, ...]:
        """Look at ranks that do well."""
        return collect_evidence(self.run_dir, self.roster.living_pids, patience)

    def stop(self, patience_s: float) -> None:
        """End everything: patience for helpers to leave by themselves, SIGTERM, grace, SIGKILL."""
        self._stopping = True
        self._name_leaders()
        self.session.guarded.stop(self.plan.grace_s, patience_s)
        self._give_up_s = time.monotonic() + self.plan.grace_s + GUARDIAN_PATIENCE_S

    def hurry(self) -> None:
        """Cut the grace period to nothing."""
        self.session.guarded.kill()
        self._give_up_s = time.monotonic() + GUARDIAN_PATIENCE_S

    def forward(self, signum: int) -> None:
        """Pass a signal on to the ranks."""
        if signum == signal.SIGWINCH:
            copy_window_size(STDOUT, self.session.streams.tty_fds)
        for each in self.roster.living:
            if each.stat is not None:
                send_signal(each.stat, signum)

    def pause(self) -> list[ProcStat]:
        """Stop the whole tree, for `resume`."""
        return self.session.guarded.pause()

    def resume(self, stopped: list[ProcStat], paused_s: float) -> None:
        """Let it go on, and take no notice of the time between."""
        self.session.guarded.resume(stopped)
        self._sampler.shift(paused_s)

    def read_errors(self) -> dict[int, ErrorRecord]:
        """Read the exceptions that the ranks of this attempt have recorded."""
        return read_errors(self.run_dir, self.roster.pids)

    def find_traces(self) -> NodeFindings:
        """Find what is left of the attempt, once all of it has ended."""
        ended = self._ended or GuardedExit(None)
        return find_traces(self.run_dir, self.plan.node_ranks, self.roster.pids, ended)

    def find_about(self, cause: Cause) -> RankFindings:
        """Find what the files of this node say of what ended the run."""
        return find_about(self.run_dir, cause)

    def close(self) -> None:
        """Let go of the streams, once all has ended, and clear up behind the dead."""
        self._keyboard.stop()
        self.pump.finish()
        for path in self._litter:
            path.unlink(missing_ok=True)
        self.listener.output_ended(mid_line=self.pump.mid_line)
        self._selector.close()
        self.session.link.close()

    # what the agent says

    def _read_link(self) -> None:
        if self._link_ended:
            return
        for message in self.session.receive():
            self._hear_agent(message)
        if self.session.agent_gone:
            self._link_ended = True
            self._selector.unregister(self.session.link)
            if not (self.roster.all_exited or self._stopping):
                self._lose_agent()

    def _hear_agent(self, message: Mapping[str, Any]) -> None:
        if "started" in message:
            self._hear_started(message)
        elif "exited" in message:
            self._hear_exited(message["exited"], message["returncode"], message["at"])
        elif "ready" in message:
            self._hear_ready(message)
        elif "crashed" in message:
            self._crash = str(message["crashed"])

    def _hear_ready(self, message: Mapping[str, Any]) -> None:
        refusal = message.get("not_preloaded")
        self.session.zygote_pid = message.get("zygote")
        self.log_event("agent-ready", zygote=self.session.zygote_pid, not_preloaded=refusal)
        if refusal is not None:
            self.listener.note(f"not preloaded, each rank imports torch by itself: {refusal}")

    def _hear_started(self, message: Mapping[str, Any]) -> None:
        rank, pid = message["started"], message["pid"]
        self.roster.add(LocalRank(rank, pid, find_stat(pid)))
        self._name_leaders()
        node = self.plan.node_rank
        self.tell(RankStarted(rank, message["local_rank"], node, pid, message["at"]))

    def _hear_exited(self, rank: int, returncode: int | None, at: int) -> None:
        local = self.roster[rank]
        if local.exited:  # the kernel has told already
            return
        self._read_errors()  # written before the exit, so it must be seen before it
        tail: tuple[str, ...] = ()
        if returncode != 0:
            self.pump.sync()
            tail = read_log_tail(self.run_dir.log_path(rank))
        oom = returncode == -signal.SIGKILL and self._oom.was_killed(local.pid)
        local.exited = True
        self.tell(RankExited(rank, returncode, at, tail, oom=oom))
        if self._stopping:
            self.session.guarded.look()

    def _lose_agent(self) -> None:
        if self._crash is None and self._agent_returncode is None:
            self._read_guarded(AGENT_END_S)  # says how, at the same moment
        if not self._stopping:
            code = self._agent_returncode
            how = "ended" if code is None else describe_exit(code)
            self.tell(AgentLost(self._crash or f"the torchrun agent {how} before its ranks"))

    def _name_leaders(self) -> None:
        self.session.guarded.set_leaders(
            [stat.pid for stat in self.roster.leaders],
            leaving=[each.pid for each in self.roster.living if each.raised],
            ours=self.session.own_pids,
        )

    # what the guardian says

    def _read_guarded(self, timeout_s: float = 0.0) -> None:
        if self._ended is not None:
            return
        for message in self.session.guarded.receive(timeout_s):
            if "exited" in message:
                self._agent_returncode = message["exited"]
            elif "reaped" in message:
                self._hear_reaped(*message["reaped"])
            elif "ended" in message:
                self._finish(self.session.guarded.wait(10.0))

    def _hear_reaped(self, pid: int, returncode: int) -> None:
        """Hear of an orphan's end: after the agent's death, the ranks' statuses come this way."""
        for each in self.roster.living:
            if each.pid == pid:
                self._hear_exited(each.rank, returncode, time.time_ns())

    def _take_over(self) -> None:
        if not self._stopping:
            self.tell(AgentLost("the guardian of this run was killed"))
        self._finish(self.session.guarded.wait(self.plan.grace_s + TAKEOVER_PATIENCE_S))

    def _finish(self, ended: GuardedExit | None) -> None:
        self._ended = ended or GuardedExit(None)
        while messages := self.session.receive():  # the agent is dead: all it said is here already
            for message in messages:
                self._hear_agent(message)
        self.tell(TreeEnded(tuple(stat.pid for stat in self._ended.leftovers)))

    # what the ranks record

    def _read_errors(self) -> None:
        """Read what the ranks have recorded since; of several, the earliest first."""
        found = []
        for each in self.roster.living:
            record = None if each.raised else read_error(self.run_dir, each.rank)
            if record is not None and record.pid == each.pid:
                found.append(record)
        for record in sorted(found, key=lambda each: each.at):
            self.roster[record.rank].raised = True
            self.tell(RankRaised(record))

    def _await_errors(self, raising: set[int]) -> None:
        """Give ranks that were seen recording their exception the time to finish that."""
        deadline = time.monotonic() + RECORDING_S
        while not raising <= set(self.read_errors()):
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self.wake_fd], [], [], left_s)[0]:
                return
            empty_fifo(self.wake_fd)
