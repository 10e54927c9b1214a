"""The verdict on a smoke run, and how it is told: tables over values, no process."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from puffrun.cli import main
from puffrun.cli.caller import Caller
from puffrun.cli.smoke_verdict import make_reporter
from puffrun.console.github import render_annotation, render_annotations, render_summary
from puffrun.console.junit import render_junit
from puffrun.console.paint import Paint
from puffrun.console.smoke_lines import render_smoke
from puffrun.errors import UsageError
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
from puffrun.smoke import Check, Finding, SmokeResult, compile_allowed, judge_run
from puffrun.smoke.judge import Rules
from puffrun.smoke.run_signs import CompilerError, Evidence, RankEvidence, find_compiler_error
from puffrun.smoke.suspicious import find_suspicions
from puffrun.smoke.verdict_json import read_verdict, verdict_as_json

RANKS = tuple(RankResult(rank, rank, 0, "ok", exit_code=0) for rank in (0, 1))
DONE = Outcome("run", "success", 0, 0, 2_000_000_000, ranks=RANKS)
TRAINED = Evidence(tuple(RankEvidence(rank, calls=10, step=9, printed_bytes=9) for rank in (0, 1)))
RULES = Rules(max_steps=10, timeout_s=120)
SLEEP = Process(77, "sleep", 1, "S")
FRAMES = (Frame("/repo/train.py", 12, "main", "step()"), Frame("/repo/envs.py", 201, "recv"))


def ended(kind, code, cause, **more):
    return replace(DONE, kind=kind, exit_code=code, cause=cause, **more)


HANG = Hang(
    "rank 1 is missing",
    waiting=(Waiting((0,), "all_reduce #5", "train.py:88 in step"),),
    missing=(Missing((1,), "ckpt.py:40 in save", "sleeps"),),
)
BAD_BUILD = ArtifactResult("visualize", "failed", "cc exited 1", "f", 1.0)

# name, outcome, evidence, exit code, the red check, words of its finding
RED = [
    ("a rank raises", ended("failed", 1, Cause("exception", "ValueError: bad", 1, frames=FRAMES)),
     TRAINED, 1, "ranks", "rank 1 failed: ValueError: bad"),
    ("a rank is killed", ended("failed", 137, Cause("signal", "killed by SIGKILL", 0)),
     TRAINED, 137, "ranks", "rank 0 failed: killed by SIGKILL"),
    ("a hang", ended("hung", 75, Cause("stall", "no rank moved for 30 s"), hang=HANG),
     TRAINED, 75, "ranks", "hang: no rank moved for 30 s"),
    ("a disagreement", ended("disagreed", 74, Cause("disagreement", "preflight: rank 1 differs")),
     TRAINED, 74, "agreement", "the ranks disagree"),
    ("a failing build", ended("artifact-failed", 71, Cause("build", "no"), artifacts=(BAD_BUILD,)),
     Evidence(), 71, "artifacts", "artifact `visualize` could not be built"),
    ("a leftover", replace(DONE, cleaned=(SLEEP,)),
     TRAINED, 1, "leftovers", "leftover: sleep (pid 77, rank 1)"),
    ("a survivor", ended("launch-failed", 73, None, leftovers=(SLEEP,)),
     TRAINED, 73, "leftovers", "survived SIGKILL"),
    ("no progress", DONE, Evidence((RankEvidence(0), RankEvidence(1))),
     1, "training", "no progress"),
    ("one rank idle", DONE, Evidence((TRAINED.ranks[0], RankEvidence(1, printed_bytes=9))),
     1, "training", "rank 1 never called progress()"),
    ("the time limit", ended("timeout", 124, Cause("timeout", "120 s ran out")),
     TRAINED, 124, "ranks", "time limit"),
    ("the step limit", ended("timeout", 124, Cause("timeout", "120 s ran out")),
     Evidence((RankEvidence(0, calls=11, step=10),)),
     124, "training", "the step limit was ignored"),
    ("bad output", DONE, Evidence((replace(TRAINED.ranks[0], suspicions=find_suspicions(
        0, ["loss: nan"])), TRAINED.ranks[1])), 1, "output", "the loss is not a number"),
]  # fmt: skip


@pytest.mark.parametrize("case", RED, ids=lambda case: case[0])
def test_what_makes_a_run_red(case):
    _, outcome, evidence, code, name, words = case
    result = judge_run(outcome, evidence, RULES, "run-dir")
    red = {check.name: check for check in result.checks if not check.green}
    assert result.exit_code == code
    assert words in " ".join(finding.title for finding in red[name].findings)
    shown = "\n".join(render_smoke(result, 100, paint=Paint(color=False), name="smoke"))
    assert f"red in 2.0 s  {len(result.findings)} finding" in shown


@pytest.mark.parametrize(
    "evidence",
    [TRAINED, Evidence((RankEvidence(0, printed_bytes=1), RankEvidence(1)))],
    ids=["progress seen", "never called, but it printed and ended by itself"],
)
def test_what_makes_a_run_green(evidence):
    result = judge_run(DONE, evidence, RULES, "run-dir")
    assert (result.exit_code, result.findings) == (0, ())
    (first, *_) = render_smoke(result, 200, paint=Paint(color=False), name="smoke")
    assert first.startswith("puffrun  smoke green in 2.0 s  artifacts: none needed")


def test_a_run_need_not_show_progress_when_that_is_said():
    idle = Evidence((RankEvidence(0), RankEvidence(1)))
    assert judge_run(DONE, idle, replace(RULES, needs_progress=False), "d").green


def test_a_build_that_outlasts_the_limit_is_a_timeout():
    stopped = ended("stopped", 143, Cause("stop", "stopped"), ranks=())
    result = judge_run(stopped, Evidence(), replace(RULES, ran_out_early=True), "d")
    assert result.exit_code == 124
    assert "before there was any rank" in result.findings[0][1].title


def test_places_of_findings():
    raised = judge_run(RED[0][1], TRAINED, RULES, "d")
    assert render_annotations(raised, Path("/repo"))[0].startswith("::error file=envs.py,line=201,")
    hung = judge_run(RED[2][1], TRAINED, replace(RULES, cwd=Path("/repo/src")), "d")
    assert "file=src/ckpt.py,line=40," in render_annotations(hung, Path("/repo"))[0]
    error = (("visualize", CompilerError("/repo/src/a.c", 88, "unknown type name")),)
    built = judge_run(RED[4][1], Evidence((), error), RULES, "d")
    (line,) = render_annotations(built, Path("/repo"))
    assert line.startswith("::error file=src/a.c,line=88,title=artifact `visualize`")
    assert "::unknown type name%0Ahint: " in line


def test_hints_name_the_config_that_was_asked_for():
    rules = replace(RULES, build_command="puffrun build-artifacts -c x.toml")
    built = judge_run(RED[4][1], Evidence(), rules, "d")
    assert "puffrun build-artifacts -c x.toml visualize" in str(built.findings[0][1].hint)


def test_annotations_cannot_be_forged():
    text = "100%\n::error::forged\r\x1b[31m"
    line = render_annotation("a: b, c", text, ("x,y:z.py", 3), None)
    assert line == ("::error file=x%2Cy%3Az.py,line=3,title=a%3A b%2C c::100%25%0A::error::forged")


def test_junit_is_xml_whatever_was_printed():
    finding = Finding('title <&"> \x00', "message \x1b[31m\x0b ]]> \udcff", "a.py", 3, hint="h")
    checks = (Check("ranks", "2 ranks", (finding,)), Check("output", "no", asked=False))
    suite = ET.fromstring(render_junit(SmokeResult(1, 2.0, checks), "smoke"))  # noqa: S314 - ours
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("2", "1", "1")
    (failure,) = suite.iter("failure")
    assert 'title <&">' in failure.get("message", "")
    assert "a.py:3" in (failure.text or "")


def test_summary_is_a_table_with_what_is_wrong():
    text = render_summary(judge_run(RED[0][1], TRAINED, RULES, "d"), "smoke", ("```", "| x |"))
    assert text.startswith("### puffrun smoke: 🔴 red, exit 1 in 2.0 s\n")
    assert "| ranks | ❌ | rank 1 failed: ValueError: bad |" in text
    assert "````text\n```\n| x |\n````" in text


def test_a_verdict_survives_json():
    result = judge_run(RED[5][1], TRAINED, RULES, "d")
    text = json.dumps(verdict_as_json(result))
    again = read_verdict("something before\n" + text + "\n")
    assert again == tuple(replace(check, text=check.said) for check in result.checks)
    assert read_verdict("no json") is None
    assert read_verdict("") is None


@pytest.mark.parametrize("case", RED, ids=lambda case: case[0])
def test_the_text_of_a_red_check_says_what_is_wrong(case):
    result = judge_run(case[1], case[2], RULES, "d")
    for check in verdict_as_json(result)["checks"]:
        if check["state"] == "red":
            assert check["text"] == "; ".join(found["title"] for found in check["findings"])
        else:
            assert check["text"]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("code", "ends"), [(0, 2), (1, 1), (75, 75)])
def test_a_file_that_takes_no_verdict_hides_no_exit_code(code, ends, as_json, capfd, tmp_path):
    findings = (Finding("bad"),) if code else ()
    result = SmokeResult(code, 1.0, (Check("ranks", "2 ranks", findings),))
    caller = Caller((), {"GITHUB_ACTIONS": "true"}, tmp_path)
    reporter = make_reporter(caller, Path("/dev/full"), as_json=as_json)
    assert reporter.report(result, "smoke") == ends
    shown = capfd.readouterr()
    words = "`--junit /dev/full` cannot be written: No space left on device"
    assert f"error: {words}" in shown.err
    assert f"::error title=puffrun smoke::{words}" in shown.err
    assert bool(shown.out) is as_json


@pytest.mark.parametrize("option", [["x.py"], ["--wheel", "no.whl"]])
def test_a_usage_error_is_a_verdict_for_scripts_too(option, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main(["smoke", "--json", "--junit", "out/smoke.xml", *option]) == 2
    shown = capfd.readouterr()
    (line,) = shown.out.splitlines()
    verdict = json.loads(line)
    assert (verdict["verdict"], verdict["exit_code"]) == ("red", 2)
    (check,) = verdict["checks"]
    assert f"error: {check['text']}" in shown.err
    suite = ET.fromstring((tmp_path / "out/smoke.xml").read_text())  # noqa: S314 - ours
    (failure,) = suite.iter("failure")
    assert failure.get("message") == check["text"]


SUSPICIOUS = [
    ("Traceback (most recent call last):", "an exception was printed"),
    ("[rank1]: Traceback (most recent call last):", "an exception was printed"),
    ("Exception ignored in: <function X.__del__>", "destructor"),
    ("/usr/lib/resource_tracker.py:123: UserWarning: 3 leaked semaphore objects", "leaked"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "CUDA"),
    ("node1:12:34 [0] NCCL WARN Call to connect failed", "NCCL"),
    ("WARNING: destroy_process_group() was not called before program exit", "process group"),
    ("==123==ERROR: AddressSanitizer: heap-use-after-free", "sanitizer"),
    ("env.c:12:3: runtime error: index 5 out of bounds", "sanitizer"),
    ("update 3  loss nan  return 0.1", "loss"),
    ("{'policy_loss': nan}", "loss"),
    ("loss tensor(nan)", "loss"),
    ("{'loss': tensor(nan, grad_fn=<MseLossBackward0>)}", "loss"),
    ("loss: tensor([inf], device='cuda:0')", "loss"),
    ("loss=np.float32(nan)", "loss"),
    ("losses: tensor([   nan, 1.0000])", "loss"),
    ("loss\tnan", "loss"),
    ("loss | nan |", "loss"),
    ("loss -> nan", "loss"),
    ("train/loss: -inf", "loss"),
    ("loss_pi=nan loss_v=0.1", "loss"),
    ("Loss: \x1b[31mnan\x1b[0m", "loss"),
    ('{"loss": "NaN", "step": 3}', "loss"),
    ("best_loss: nan", "loss"),
    ("min_val_loss=inf  val_loss=inf", "loss"),
    ("OSError: [Errno 28] No space left on device", "refused"),
]
HARMLESS = [
    "update 3/100  steps 4,096  goal 12.0 %  return -1.30",
    "reward nan",  # an episode that has not ended yet
    "loss 0.312  nan_count 0",
    "min_val_loss=inf (first epoch)",
    "best_loss: inf",
    "best loss: inf",
    "lowest_train_loss = tensor(inf)",
    "val_loss_min=inf",
    "bestLoss: inf",
    "lossless: nan",
    "loss: nan-safe reduction is on",
    "loss: infeasible actions 0",
    "loading banana_loss_info",
    "FutureWarning: torch.load",
    "no errors, 0 failed",
]


@pytest.mark.parametrize(("line", "why"), SUSPICIOUS)
def test_output_that_a_healthy_run_does_not_have(line, why):
    (found,) = find_suspicions(1, ["fine", line, "ValueError: the end"])
    assert (found.rank, found.line) == (1, 2)
    assert why in found.why


@pytest.mark.parametrize("line", HARMLESS)
def test_output_that_is_harmless(line):
    assert find_suspicions(0, [line]) == ()


@pytest.mark.parametrize("part", ["a", "loss_", "best_", "loss", " ", "loss: ", "->"])
def test_a_long_line_costs_no_more_than_its_length(part):
    size = 600_000  # a search that goes back would take hours
    assert find_suspicions(0, ["loss" + part * (size // len(part))]) == ()


def test_repeated_output_is_one_finding_a_reason():
    lines = [f"loss nan  step {step}" for step in range(200)] + ["CUDA error: busy"]
    shown = find_suspicions(1, lines)
    assert [(seen.line, seen.more) for seen in shown] == [(1, 199), (201, 0)]
    evidence = Evidence((replace(TRAINED.ranks[0], suspicions=shown), TRAINED.ranks[1]))
    (_, first), (_, second) = judge_run(DONE, evidence, RULES, "d").findings
    assert first.message == "line 1 of its log, and 199 more: loss nan  step 0"
    assert second.message == "line 201 of its log: CUDA error: busy"


def test_a_printed_traceback_is_named_by_its_exception_and_may_be_allowed():
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1', "KeyError: 'x'"]
    (found,) = find_suspicions(0, lines)
    assert found.text == "KeyError: 'x'"
    assert find_suspicions(0, lines, compile_allowed(["^KeyError"])) == ()
    with pytest.raises(UsageError, match=re.escape("`--allow (` is no regular expression")):
        compile_allowed(["("])


def test_the_first_compiler_error_is_found(tmp_path):
    text = "cc -O2\nsrc/a.c: In function 'main':\nsrc/a.c:88:5: error: unknown type name 'Vec3'\n"
    error = find_compiler_error(text, tmp_path)
    assert error == CompilerError(str(tmp_path / "src/a.c"), 88, "unknown type name 'Vec3'")
    assert find_compiler_error("make: *** [all] Error 1", tmp_path) is None


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("smoke nosuch.py", "script nosuch.py does not exist"),
        ("smoke --steps 0 x.py", "`--steps` must be a whole number, 1 or more, not 0"),
        (f"smoke --steps {'9' * 5000} x.py", "`--steps` must be a whole number"),
        ("smoke --timeout abc x.py", "`--timeout` must be a number of seconds"),
        ("smoke --allow ( x.py", "is no regular expression"),
        ("smoke --extra-site . x.py", "--extra-site goes with --wheel"),
        ("smoke --junit . x.py", "`--junit .` is a directory"),
        ("smoke --cpus 2 --gpus 2 x.py", "exclude each other"),
    ],
)
def test_usage_errors_are_annotated_too(args, words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "x.py").touch()
    assert main([*args.split()[:1], "--json", *args.split()[1:]]) == 2
    verdict, shown = capfd.readouterr()
    assert words in shown
    assert "Traceback" not in shown
    if "--junit" not in args:
        assert json.loads(verdict)["exit_code"] == 2
    assert list(tmp_path.glob(".puffrun/runs/*")) == []


def test_the_help_tells_all_of_the_gate(capfd):
    assert main(["smoke", "--help"]) == 0
    shown = capfd.readouterr().out
    for word in ("--wheel", "--extra-site", "CUDA_VISIBLE_DEVICES", "TMPDIR", "PIP_*",
                 "GITHUB_ACTIONS", "PUFFRUN_SMOKE", "PUFFRUN_MAX_STEPS"):  # fmt: skip
        assert word in shown
