"""The pages about CI: every option that they name exists, every key is stable."""

import re
from pathlib import Path

import pytest
from artifact_project import build

from puffrun.cli import main, smoke
from puffrun.cli.caller import Caller
from puffrun.cluster import Allocation, Gpu, Inventory, VisibleGpu

DOCS = Path(__file__).parent.parent / "docs"
CHAIN = """
[artifacts.one]
cmd = ["cp", "in", "{out}/out"]
inputs = ["in"]
outputs = ["out"]

[artifacts.two]
cmd = ["cp", "{artifact:one}/out", "{out}/out"]
outputs = ["out"]
needs = ["one"]
"""
PAGES = ("ci.md", "release-gate.md", "doctor.md", "workflows/puffrun-smoke.yml")


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_a_command_exists(page, capfd):
    text = (DOCS / page).read_text(encoding="utf-8")
    commands = re.findall(r"(?:^|run: |\$\()puffrun ([a-z-]+)((?: [^\n#)]*)?)", text, re.MULTILINE)
    assert commands
    for name, rest in commands:
        assert main([name, "--help"]) == 0
        shown = capfd.readouterr().out
        for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", rest.partition("train.py")[0]):
            assert re.search(rf"(?<!\S){option}\b", shown), (name, option)


def test_the_cache_key_is_the_same_before_and_after_a_build(tmp_path):
    (tmp_path / "in").write_text("1\n")
    (tmp_path / "puffrun.toml").write_text(CHAIN)
    before = build(tmp_path, "--print-key")
    assert re.fullmatch(r"puffrun-artifacts-1-[0-9a-f]{32}\n", before.stdout)
    assert not (tmp_path / ".puffrun").exists()
    build(tmp_path)
    assert build(tmp_path, "--print-key").stdout == before.stdout
    assert build(tmp_path, "--print-key", "one").stdout != before.stdout
    (tmp_path / "in").write_text("2\n")
    assert build(tmp_path, "--print-key").stdout != before.stdout
    refused = build(tmp_path, "--print-key", "--check")
    assert refused.wait() == 2
    assert "exclude each other" in refused.stderr


@pytest.mark.parametrize(("gpus", "names"), [(0, ["cpu"]), (2, ["cpu", "gpu"])])
def test_the_gate_runs_on_the_gpus_that_are_visible(gpus, names, tmp_path, monkeypatch):
    found = tuple(Gpu(i, f"GPU-{i}", "NVIDIA H100") for i in range(gpus))
    visible = tuple(VisibleGpu(str(g.index), g) for g in found)
    allocation = Allocation(8, Inventory(found), visible)
    monkeypatch.setattr(smoke, "detect_allocation", lambda *_args, **_options: allocation)
    flags = dict.fromkeys(("gpus", "stall-timeout", "exit-timeout", "grace", "run-dir"))
    asked = smoke.Asked(
        config=None,
        words=(),
        is_module=False,
        flags={**flags, "cpus": "2", "timeout": "60"},
        steps=3,
        allow=(),
        progress_check=True,
        as_json=False,
        extra_sites=(),
    )
    runs = smoke._choose_runs(asked, Caller((), {}, tmp_path))
    assert [run.name for run in runs] == names
    assert runs[0].options == ("--cpus", "2", "--steps", "3", "--timeout", "60")
    assert all(run.options[:2] == ("--gpus", "all") for run in runs[1:])
