import os
from pathlib import Path

import pytest
from faults.matrix import Fault, choose_cases
from harness import PROGRAMS, Run, is_gone, puffrun, wait_for

from puffrun.outcome import Outcome
from puffrun.process import find_stat
from puffrun.report import outcome_from_json

CASES = choose_cases(everything="PUFFRUN_FAULTS" in os.environ)  # set by `make faults`


@pytest.mark.parametrize(
    ("mode", "fault"), CASES, ids=[f"{fault.name}{mode[1:]}" for mode, fault in CASES]
)
def test_fault(mode: str, fault: Fault, tmp_path: Path) -> None:
    program, *args = fault.program.split()
    options = (mode, "--cpus", str(fault.ranks), *fault.options)
    with puffrun(*options, PROGRAMS / program, *args, cwd=tmp_path) as run:
        if fault.do is not None:
            wait_for(lambda: is_up(run, fault.ranks), "every rank's first line")
            fault.do(run)
        code = run.wait()
        assert code == fault.exit_code, run.stderr
        check_report(fault, run)
        assert run.alive() == []
        check_hidden_child(run)
        check_logs(fault, run)


def is_up(run: Run, ranks: int) -> bool:
    logs = [run.dir / "logs" / f"rank-{rank}.log" for rank in range(ranks)]
    return all(log.exists() and log.stat().st_size > 0 for log in logs)


def check_report(fault: Fault, run: Run) -> None:
    report = run.report
    outcome = outcome_from_json(report)  # raises when it is not schema 1
    assert outcome.exit_code == fault.exit_code
    assert outcome.leftovers == ()
    assert (outcome.cause.kind if outcome.cause else None) == fault.kind, run.stderr
    if fault.rank is not None:
        assert outcome.cause is not None
        assert outcome.cause.rank == fault.rank, run.stderr
        assert fault.rank not in outcome.victims
    check_cause(outcome)
    if fault.victims is not None:
        assert outcome.victims == fault.victims
    assert len(outcome.ranks) == fault.ranks
    assert fault.says in run.stderr
    if fault.kind is not None:
        assert len(run.stderr.splitlines()) < 40, "the card fits on a screen"


def check_cause(outcome: Outcome) -> None:
    """The cause tells of a rank what the rank's own entry tells."""
    cause = outcome.cause
    if cause is None or cause.rank is None:
        return
    rank = outcome.ranks[cause.rank]
    assert cause.node == rank.node
    if cause.signal is not None:
        assert (cause.exit_code, cause.signal) == (None, rank.signal)
    elif rank.exit_code is not None:
        assert cause.exit_code == rank.exit_code


def check_hidden_child(run: Run) -> None:
    """A child that cleared its environment carries no mark; its pid was written down."""
    path = run.dir / "child.pid"
    if path.exists():
        stat = find_stat(int(path.read_text()))
        assert stat is None or is_gone(stat.pid, stat.started)


def check_logs(fault: Fault, run: Run) -> None:
    """The first words of every rank that spoke, and the last ones of the rank that fell."""
    if fault.do is not None or fault.exit_code == 0:  # then every rank is known to have spoken
        assert all(run.log(rank).strip() for rank in range(fault.ranks))
    if fault.program.startswith("fail.py"):
        culprit = run.log(int(fault.program.split()[1]))
        assert culprit.startswith(f"rank {fault.program.split()[1]} up\nlast words")
