import json
import os
import signal

import pytest

from puffrun.cli import main
from puffrun.errors import UsageError
from puffrun.naming import signal_name
from puffrun.outcome import (
    ArtifactResult,
    Cause,
    Frame,
    Hang,
    Missing,
    Outcome,
    Process,
    RankResult,
    Waiting,
)
from puffrun.report import find_run, load_report, outcome_from_json, report_as_json, write_report
from puffrun.rundir import RunDir

SECOND = 10**9
TOP_LEVEL = [
    "schema",
    "run_id",
    "outcome",
    "exit_code",
    "started_at",
    "ended_at",
    "duration_s",
    "cause",
    "ranks",
    "victims",
    "artifacts",
    "hang",
    "leftovers",
    "cleaned",
    "plan",
]
CAUSE = [
    "kind",
    "rank",
    "node",
    "exit_code",
    "signal",
    "summary",
    "traceback",
    "log_tail",
    "detail",
]
RANK = [
    "rank",
    "local_rank",
    "node",
    "pid",
    "state",
    "exit_code",
    "signal",
    "started_at",
    "ended_at",
    "last_progress",
    "log_path",
    "stack_path",
]

FULL = Outcome(
    run_id="1130-1042-k7fqa",
    kind="failed",
    exit_code=1,
    started_at=1_700_000_000 * SECOND,
    ended_at=1_700_000_090 * SECOND,
    cause=Cause(
        kind="exception",
        summary="ValueError: 63 ☂",
        rank=1,
        node=0,
        exit_code=1,
        traceback="Traceback …",
        frames=(Frame("train.py", 4, "main", "boom()"),),
        log_tail=("step 1", "step 2"),
        detail={"checkpoint": "ckpt/step-1", "checkpoint_at": 5},
    ),
    ranks=(
        RankResult(0, 0, 0, "killed", pid=7, signal=15, started_at=1, ended_at=2),
        RankResult(1, 1, 0, "cause", pid=8, exit_code=1, log_path="logs/rank-1.log"),
    ),
    victims=(0,),
    artifacts=(ArtifactResult("env", "built", "never built", "ab12", 1, dir="/x"),),
    hang=Hang("t", (Waiting((0,), "all_reduce #5", "a.py:1 in f"),), (Missing((1,), "b", "c"),)),
    leftovers=(Process(9, "cc", rank=1, state="D"),),
    cleaned=(Process(10, "python"),),
    attempts=({"attempt": 1, "exit_code": 7},),
)
PLAIN = Outcome("1130-1043-aaaaa", "success", 0, started_at=0, ended_at=SECOND)


@pytest.mark.parametrize("outcome", [FULL, PLAIN], ids=["full", "plain"])
def test_a_report_round_trips_through_json(outcome):
    text = json.dumps(report_as_json(outcome, {"run_id": outcome.run_id}))
    assert outcome_from_json(json.loads(text)) == outcome


def test_the_report_has_exactly_the_fields_of_schema_1():
    report = report_as_json(PLAIN, {"program": "train.py"})
    assert list(report) == TOP_LEVEL
    assert report["schema"] == 1
    assert report["plan"] == {"program": "train.py"}
    full = report_as_json(FULL, {})
    assert list(full) == [*TOP_LEVEL, "attempts"]
    assert sorted(full["cause"]) == sorted(CAUSE)
    assert sorted(full["ranks"][0]) == sorted(RANK)
    assert full["duration_s"] == 90.0
    assert full["cause"]["detail"]["frames"][0]["line"] == 4


def test_a_report_is_written_whatever_the_detail_holds(tmp_path):
    odd = {"nan": float("nan"), "path": tmp_path, 3: {"a set"}, "bytes": "half a \udce2 rune"}
    outcome = Outcome("r", "failed", 1, 0, 1, cause=Cause("exit", "exited 1", detail=odd))
    run_dir = RunDir(tmp_path)
    write_report(run_dir, outcome, {})
    detail = json.loads(run_dir.report_path.read_bytes())["cause"]["detail"]
    assert detail == {"nan": "nan", "path": str(tmp_path), "3": ["a set"], "bytes": "half a ? rune"}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_written_report_is_read_back_with_its_plan(tmp_path):
    write_report(RunDir(tmp_path), FULL, {"again": "puffrun train"})
    report = load_report(RunDir(tmp_path))
    assert report.outcome == FULL
    assert report.plan == {"again": "puffrun train"}
    assert json.loads(report.text)["run_id"] == FULL.run_id


RUBBISH = [
    ([], "no `schema`"),
    ({}, "no `schema`"),
    ({"schema": 2}, "schema 2, this puffrun reads 1"),
    ({"schema": 1}, "`run_id` is missing"),
    ({"outcome": "odd"}, "`outcome` should be one of success"),
    ({"exit_code": "1"}, "`exit_code` should be a whole number, found `'1'`"),
    ({"exit_code": True}, "`exit_code` should be a whole number"),
    ({"ranks": {}}, "`ranks` should be a list"),
    ({"ranks": [{"rank": 0}]}, "`ranks[0].local_rank` is missing"),
    ({"cause": 7}, "`cause` should be an object"),
    ({"cause": {"kind": "exit", "summary": None}}, "`cause.summary` should be a text"),
    ({"cause": {"kind": "exit", "summary": "", "detail": 3}}, "`cause.detail` should be an object"),
    ({"artifacts": [{"name": "a"}]}, "`artifacts[0].state` is missing"),
]


@pytest.mark.parametrize(("change", "message"), RUBBISH, ids=[m for _, m in RUBBISH])
def test_rubbish_is_a_usage_error_that_names_the_field(change, message):
    sound = {"run_id": "r", "outcome": "failed", "exit_code": 1, "started_at": 0, "ended_at": 1}
    is_whole = not change or "schema" in change
    report = change if is_whole else {"schema": 1, **sound, **change}
    with pytest.raises(UsageError) as caught:
        outcome_from_json(report)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "{", "nonsense", "[" * 100_000, "\xff"])
def test_a_damaged_file_is_a_usage_error(tmp_path, text):
    RunDir(tmp_path).report_path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError) as caught:
        load_report(RunDir(tmp_path))
    assert "could not be read" in caught.value.message
    assert len(caught.value.message.splitlines()) == 1


def test_a_run_without_a_report_says_where_its_logs_are(tmp_path):
    with pytest.raises(UsageError) as caught:
        load_report(RunDir(tmp_path / "1130-1042-k7fqa"))
    assert "run `1130-1042-k7fqa` has no report" in caught.value.message
    assert "logs" in caught.value.hint


def test_a_report_that_cannot_be_written_leaves_nothing(tmp_path):
    run_dir = RunDir(tmp_path)
    run_dir.report_path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_report(run_dir, PLAIN, {})
    assert list(tmp_path.iterdir()) == [run_dir.report_path]


@pytest.fixture
def state_dir(tmp_path):
    for age, run_id in enumerate(["1130-1042-aaaaa", "1130-1043-bbbbb", "1201-0900-ccccc"]):
        run = tmp_path / ".puffrun" / "runs" / run_id
        run.mkdir(parents=True)
        write_report(RunDir(run), PLAIN, {})
        os.utime(run, (age, age))
    return tmp_path / ".puffrun"


def test_the_default_run_is_the_last(state_dir):
    runs = state_dir / "runs"
    assert find_run(state_dir).path == runs / "1201-0900-ccccc"
    (state_dir / "last").symlink_to(runs / "1130-1042-aaaaa")
    assert find_run(state_dir).path == runs / "1130-1042-aaaaa"
    (state_dir / "last").unlink()
    (state_dir / "last").symlink_to("runs/gone")
    assert find_run(state_dir).path == runs / "1201-0900-ccccc"


@pytest.mark.parametrize("name", ["1130-1043-bbbbb", "1130-1043", "1130-1043-b"])
def test_a_run_is_found_by_its_id_or_the_start_of_it(state_dir, name):
    assert find_run(state_dir, name).path.name == "1130-1043-bbbbb"


def test_a_run_is_found_by_a_path(state_dir, tmp_path):
    run = state_dir / "runs" / "1130-1042-aaaaa"
    assert find_run(tmp_path / "other", str(run)).path == run
    assert find_run(tmp_path / "other", run / "report.json").path == run


def test_an_unknown_run_names_the_nearest(state_dir):
    with pytest.raises(UsageError) as caught:
        find_run(state_dir, "1201-0901-cccc")
    assert "no run `1201-0901-cccc`" in caught.value.message
    assert caught.value.hint == "`puffrun report 1201-0900-ccccc`"


def test_an_ambiguous_run_lists_the_candidates(state_dir):
    with pytest.raises(UsageError, match="`1130` begins 2 runs: 1130-1043-bbbbb, 1130-1042-aaaaa"):
        find_run(state_dir, "1130")


@pytest.mark.parametrize("name", [None, "1130", "", "/nowhere/at/all"])
def test_a_project_without_runs_says_so(tmp_path, name):
    with pytest.raises(UsageError, match="no run"):
        find_run(tmp_path, name)


def test_signals_have_their_names():
    assert [signal_name(n) for n in (2, 9, 11, 15)] == ["SIGINT", "SIGKILL", "SIGSEGV", "SIGTERM"]
    assert signal_name(signal.SIGRTMIN) == "SIGRTMIN"
    assert signal_name(signal.SIGRTMIN + 3) == "SIGRTMIN+3"
    assert signal_name(99) == "signal 99"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one failed run, as `puffrun report` finds it."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / ".puffrun" / "runs" / FULL.run_id
    run.mkdir(parents=True)
    write_report(RunDir(run), FULL, {"program": "train.py", "ranks_per_node": 2})
    return run


def test_puffrun_report_shows_the_last_run_again(project, capsys):
    assert main(["report"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == "puffrun  run 1130-1042-k7fqa  2 ranks on the CPU  train.py"
    assert lines[1] == "puffrun  rank 1 failed: ValueError: 63 ☂"
    assert f"    logs .puffrun/runs/{FULL.run_id}/logs" in lines
    assert shown.err == ""


@pytest.mark.parametrize("name", ["1130", "{run}", "{run}/report.json"])
def test_puffrun_report_prints_the_json_of_a_named_run(project, capsys, name):
    assert main(["report", name.format(run=project), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(
        RunDir(project).report_path.read_bytes()
    )


def test_puffrun_report_of_a_run_with_a_broken_config_works_by_path(project, capsys):
    (project.parents[2] / "puffrun.toml").write_text("[")
    assert main(["report", f".puffrun/runs/{FULL.run_id}"]) == 0
    assert "ValueError" in capsys.readouterr().out
    assert main(["report"]) == 2
    assert "puffrun.toml" in capsys.readouterr().err


def test_puffrun_report_of_an_unknown_run_is_one_line_and_a_hint(project, capsys):
    assert main(["report", "1130-1042-k7fqb"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        f"error: no run `1130-1042-k7fqb` in `{project.parent}`",
        f"hint: `puffrun report {FULL.run_id}`",
    ]
