"""Takes the evidence of all ranks at once, each step with a deadline, before anything is killed.

For each rank: what the kernel says, torch's flight recorder, the Python stacks; and py-spy, where
it is installed, for a rank that cannot answer: stopped, or holding the GIL in native code.
Nothing here disturbs a rank: no signal, no ptrace stop. The raw evidence is kept in stacks/.
"""

import shutil
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from puffrun.evidence.asking import NoAnswerError, ask
from puffrun.evidence.flight_records import (
    FlightRecord,
    merge_records,
    parse_flight_record,
    read_journal,
)
from puffrun.evidence.kernel import read_native_state
from puffrun.evidence.rank_evidence import RankEvidence
from puffrun.evidence.thread_stacks import ThreadStack, add_code, parse_faulthandler, parse_py_spy
from puffrun.process import ProcStat, read_stats, run_captured
from puffrun.rundir import RunDir

RECORDERS = ("fr_trace_json", "dump_nccl_trace_json")  # gloo and the rest; NCCL, where it is built
MAX_AT_ONCE = 32


@dataclass(frozen=True)
class Patience:
    """How long each question to a rank may take, in seconds."""

    answer_s: float
    py_spy_s: float
    keeps: bool = True  # whether the raw evidence goes to stacks/


PATIENT = Patience(answer_s=1.5, py_spy_s=2.0)  # the run hangs: it has waited long already
HASTY = Patience(answer_s=0.7, py_spy_s=0.7)  # a rank fell, or a user waits for Ctrl-C
PASSING = Patience(answer_s=0.5, py_spy_s=0.0, keeps=False)  # a look at a run that goes well


@dataclass
class _Dossier:
    """One rank's evidence in the making: the value, and its raw text."""

    rank: int
    pid: int
    run_dir: RunDir
    patience: Patience
    raw: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def take(self, stats: Mapping[int, ProcStat]) -> RankEvidence:
        native = read_native_state(self.pid, stats)
        self._keep("kernel", repr(native))
        record: FlightRecord | None = None
        threads: tuple[ThreadStack, ...] = ()
        if not native.is_stopped:
            record = self._ask_recorders()
            threads = self._ask_stacks()
        is_mute = not threads and record is not None  # it answers, but not what needs the GIL
        if not threads and self.patience.py_spy_s > 0:
            threads = self._spy()
        self._write_stacks()
        return RankEvidence(
            rank=self.rank,
            pid=self.pid,
            native=native,
            record=record,
            journal=read_journal(self.run_dir.journal_path(self.rank)),
            threads=add_code(threads),
            holds_gil=is_mute,
            notes=tuple(self.notes),
        )

    def _ask_recorders(self) -> FlightRecord | None:
        records = []
        for handler in RECORDERS:
            text = self._ask(handler, must_answer=handler == RECORDERS[0])
            record = parse_flight_record(text) if text else None
            if record is not None:
                records.append(record)
        return merge_records(records)

    def _ask_stacks(self) -> tuple[ThreadStack, ...]:
        return parse_faulthandler(self._ask("dump_traceback") or "")

    def _ask(self, handler: str, *, must_answer: bool = True) -> str | None:
        path = self.run_dir.socket_path(self.rank)
        try:
            text = ask(path, handler, self.patience.answer_s)
        except NoAnswerError as error:
            if must_answer:
                self._note(f"{handler}: {error}")
            return None
        if handler in RECORDERS:
            self._write(self.run_dir.records_path(self.rank, handler), text)
        else:
            self._keep(handler, text)
        return text

    def _spy(self) -> tuple[ThreadStack, ...]:
        """Read the stacks from outside with py-spy, which neither stops nor asks the rank."""
        program = find_py_spy()
        if program is None:
            self._note("py-spy is not installed (`pip install 'puffrun[stacks]'`)")
            return ()
        argv = [program, "dump", "--nonblocking", "--json", "--pid", str(self.pid)]
        try:
            seen = run_captured(argv, timeout_s=self.patience.py_spy_s)
        except OSError as error:
            self._note(f"py-spy: {error.strerror}")
            return ()
        text = seen.stdout.decode("utf-8", "replace")
        threads = parse_py_spy(text)
        if not threads:
            lines = seen.stderr.decode("utf-8", "replace").strip().splitlines()
            self._note(f"py-spy: {lines[0] if lines else 'no answer in time'}")
        self._keep("py-spy", text)
        return threads

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self._keep("not known", text)

    def _keep(self, title: str, text: str) -> None:
        self.raw.append(f"=== {title}\n{text.rstrip()}\n")

    def _write_stacks(self) -> None:
        head = f"rank {self.rank}  pid {self.pid}  at {time.strftime('%Y-%m-%d %H:%M:%S %z')}\n"
        self._write(self.run_dir.stack_path(self.rank), "\n".join([head, *self.raw]))

    def _write(self, path: Path, text: str) -> None:
        """Keep raw evidence; a full disk costs the file, not the verdict."""
        if not self.patience.keeps:
            return
        try:
            path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            self.notes.append(f"the raw evidence could not be kept: {error.strerror}")


def collect_evidence(
    run_dir: RunDir, rank_pids: Mapping[int, int], patience: Patience = PATIENT
) -> tuple[RankEvidence, ...]:
    """Ask every living rank of this machine (`rank_pids`: rank → pid) what it does, all at once.

    Takes at most twice `answer_s` and once `py_spy_s` for each `MAX_AT_ONCE` ranks; much less
    when they answer.
    """
    if not rank_pids:
        return ()
    stats = read_stats()
    dossiers = [_Dossier(rank, pid, run_dir, patience) for rank, pid in sorted(rank_pids.items())]
    with ThreadPoolExecutor(min(len(dossiers), MAX_AT_ONCE)) as pool:
        return tuple(pool.map(lambda dossier: dossier.take(stats), dossiers))


def find_py_spy() -> str | None:
    """Find py-spy beside this Python, else on the PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")
