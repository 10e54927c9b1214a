"""Has any rank moved? Cheap signs at each sample, counters only when those are still.

Progress is output, a heartbeat, a collective counter that moved, or CPU time and file I/O that
were spent outside a collective, or would have been on a machine with a CPU to spare. What a rank
spends while it waits in one does not count.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from puffrun.diagnose import is_elsewhere
from puffrun.evidence import HASTY, MAX_AT_ONCE, Pulse, collect_evidence, read_pulse
from puffrun.heartbeat import read_heartbeat
from puffrun.process import ProcStat
from puffrun.rundir import RunDir

MIN_PULSE_S = 1.0
MAX_PULSE_S = 30.0
PULSES_PER_LIMIT = 8  # how often the counters are read within the stall limit


@dataclass(frozen=True)
class Signs:
    """What is read at each sample: a change in any of it is progress."""

    log_bytes: int
    heartbeats: tuple[int, ...]


@dataclass
class StallClock:
    """Since when nothing has moved. `limit_s` 0 switches it off."""

    run_dir: RunDir
    limit_s: float
    _moved_at: float | None = None
    _signs: Signs | None = None
    _pulses: dict[int, Pulse] = field(default_factory=dict)
    _earlier: dict[int, Pulse] = field(default_factory=dict)
    _pulsed_at: float | None = None
    _pulse_gap_s: float = 0.0

    def observe(
        self, rank_pids: Mapping[int, int], stats: Mapping[int, ProcStat], now: float
    ) -> float | None:
        """Look once; return for how long nothing has moved when that is as long as the limit."""
        if self.limit_s <= 0:
            return None
        signs = self._read_signs(rank_pids)
        if self._moved_at is None or signs != self._signs:
            self._signs, self._moved_at = signs, now
            self._forget_pulses()
            return None
        if self._is_pulse_due(now) and self._take_pulses(rank_pids, stats, now):
            self._moved_at = now
        still_s = now - self._moved_at
        if still_s < self.limit_s or not self._earlier:
            return None  # one pulse alone does not tell whether anything moves
        if self._is_busy_elsewhere(rank_pids):
            self._moved_at = now
            return None
        return still_s

    def restart(self, now: float) -> None:
        """Begin to count anew."""
        self._moved_at = now
        self._forget_pulses()

    def shift(self, by_s: float) -> None:
        """Take no notice of the time in which the whole run was paused."""
        if self._moved_at is not None:
            self._moved_at += by_s
        self._forget_pulses()

    def _forget_pulses(self) -> None:
        """Compare no pulse with one of before: that would tell nothing of the time since."""
        self._pulsed_at = None
        self._pulses, self._earlier = {}, {}

    def _is_pulse_due(self, now: float) -> bool:
        pause_s = min(max(self.limit_s / PULSES_PER_LIMIT, MIN_PULSE_S), MAX_PULSE_S)
        return now - max(self._moved_at or now, self._pulsed_at or 0.0) >= pause_s

    def _take_pulses(
        self, rank_pids: Mapping[int, int], stats: Mapping[int, ProcStat], now: float
    ) -> bool:
        """Take every rank's pulse, and say whether any has moved since the last time."""
        self._earlier, since = self._pulses, self._pulsed_at
        with ThreadPoolExecutor(min(len(rank_pids), MAX_AT_ONCE)) as pool:
            taken = pool.map(
                lambda rank: read_pulse(self.run_dir, rank, rank_pids[rank], stats),
                rank_pids,
            )
            self._pulses = dict(zip(rank_pids, taken, strict=True))
        self._pulsed_at = now
        if since is None:
            return False
        self._pulse_gap_s = now - since
        return any(
            rank in self._earlier and pulse.moved_since(self._earlier[rank], self._pulse_gap_s)
            for rank, pulse in self._pulses.items()
        )

    def _is_busy_elsewhere(self, rank_pids: Mapping[int, int]) -> bool:
        """Whether a rank with an open collective computes elsewhere: that one is asynchronous.

        Asked once before a stall is declared, because only its stack tells the two apart. Who
        waits in a collective answers; who works and does not answer is elsewhere.
        """
        pairs = {
            rank: (pulse, self._earlier[rank])
            for rank, pulse in self._pulses.items()
            if rank in rank_pids and rank in self._earlier and pulse.is_in_collective
        }
        busy = {r for r, (p, old) in pairs.items() if p.is_busy_since(old, self._pulse_gap_s)}
        suspects = {
            rank: rank_pids[rank]
            for rank, (pulse, old) in pairs.items()
            if rank in busy or pulse.cpu > old.cpu
        }
        evidence = collect_evidence(self.run_dir, suspects, HASTY)
        return any(
            is_elsewhere(each) or (each.rank in busy and not each.threads) for each in evidence
        )

    def _read_signs(self, rank_pids: Mapping[int, int]) -> Signs:
        log_bytes, calls = 0, []
        for rank in rank_pids:
            path = self.run_dir.log_path(rank)
            log_bytes += path.stat().st_size if path.exists() else 0
            beat = read_heartbeat(self.run_dir.heartbeat_path(rank))
            calls.append(beat.calls if beat is not None else 0)
        return Signs(log_bytes, tuple(calls))
