from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from faults.hangs import CASES, PROGRAM, HangCase, Row, find_places
from harness import puffrun

AT_ONCE = 4  # a hang is idle: several wait at the same time
QUICK = ("--cpus", "4", "--grace", "1", "--exit-timeout", "2", "--preload")


@dataclass(frozen=True)
class Ended:
    code: int
    report: dict
    stderr: str
    verdicts: list[str]
    alive: list


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[Ended]"]]:
    """Run the cases that were selected, a few at once."""
    ours = [item for item in request.session.items if item.path == request.path]
    cases = [item.callspec.params["case"] for item in ours if hasattr(item, "callspec")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {c.name: pool.submit(run_case, c, tmp_path_factory.mktemp(c.name)) for c in cases}
        try:
            yield futures
        finally:
            for future in futures.values():
                future.cancel()


def run_case(case: HangCase, cwd: Path) -> Ended:
    arguments = (*QUICK, *case.options, PROGRAM, case.name)
    with puffrun(*arguments, cwd=cwd) as run:
        if case.do is not None:
            case.do(run)
        code = run.wait()
        verdicts = [e["hang"]["text"] for e in run.events("evidence") if e["hang"]]
        return Ended(code, run.report, run.stderr, verdicts, run.alive())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_verdict_names_rank_operation_and_line(
    case: HangCase, runs: dict[str, "Future[Ended]"]
) -> None:
    ended = runs[case.name].result()
    hang = ended.report["hang"]
    assert ended.code == case.exit_code, ended.stderr
    assert ended.report["cause"]["kind"] == case.kind, ended.stderr
    assert ended.report["cause"]["rank"] == case.rank, ended.stderr
    assert tuple(hang["culprits"]) == case.culprits, hang
    check_rows(case.waiting, hang["waiting"], "op")
    check_rows(case.missing, hang["missing"], "doing")
    assert case.says in " ".join(ended.stderr.split()), ended.stderr
    if case.kind == "stall":  # the event log has it too, from before anything was killed
        assert ended.verdicts == [hang["text"]]
    assert ended.alive == []


def check_rows(expected: tuple[Row, ...], rows: list[dict], what: str) -> None:
    assert [tuple(row["ranks"]) for row in rows] == [ranks for ranks, _, _ in expected], rows
    for row, (_, text, place) in zip(rows, expected, strict=True):
        assert row[what].startswith(text), rows
        assert row["at"] in find_places(place), rows
