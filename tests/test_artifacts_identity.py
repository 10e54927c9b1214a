"""Tools and ABI probes: what the fingerprint knows beyond the sources."""

import os
import sys
from pathlib import Path

import pytest

from puffrun.artifacts.freshness import probes, tools
from puffrun.artifacts.freshness.hashing import HashCache
from puffrun.artifacts.freshness.probes import PROBES, ProbeSite, describe_cpu, read_torch_version
from puffrun.artifacts.freshness.tools import identify_tool


def make_tool(directory: Path, name: str, script: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def bin_env(tmp_path: Path) -> dict[str, str]:
    return {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}


def identify(tool: str, root: Path, env: dict[str, str], cache: HashCache | None = None):
    return identify_tool(tool, root, env, cache or HashCache(root / "cache.json"))


def test_a_tool_is_its_version_and_its_real_name(tmp_path: Path, bin_env: dict):
    real = make_tool(tmp_path / "bin", "mycc-12", "echo 'mycc 12.2'; echo 'InstalledDir: /opt/x'")
    (tmp_path / "bin" / "mycc").symlink_to(real)
    assert identify("mycc", tmp_path, bin_env) == "mycc 12.2\nmycc-12"


def test_a_tool_may_be_given_by_path(tmp_path: Path, bin_env: dict):
    make_tool(tmp_path / "bin", "mycc", "echo 1.0")
    assert identify("bin/mycc", tmp_path, {"PATH": ""}) == "1.0\nmycc"
    assert identify("bin/nosuch", tmp_path, bin_env) is None


def test_a_tool_that_is_not_on_path_is_none(tmp_path: Path, bin_env: dict):
    assert identify("nosuchtool", tmp_path, bin_env) is None


@pytest.mark.parametrize("script", ["exit 1", "kill -9 $$"])
def test_a_tool_without_version_is_known_by_its_content(tmp_path: Path, bin_env: dict, script: str):
    make_tool(tmp_path / "bin", "odd", script)
    first = identify("odd", tmp_path, bin_env)
    make_tool(tmp_path / "bin", "odd", script + " # newer")
    second = identify("odd", tmp_path, bin_env)
    assert first is not None
    assert first.startswith("content ")
    assert first != second


def test_a_script_is_asked_each_time_for_it_may_call_another(tmp_path: Path, bin_env: dict):
    (tmp_path / "version").write_text("1.0")
    make_tool(tmp_path / "bin", "wrapped", f"cat {tmp_path}/version")
    cache = HashCache(tmp_path / "cache.json")
    first = identify("wrapped", tmp_path, bin_env, cache)
    (tmp_path / "version").write_text("2.0")
    assert first != identify("wrapped", tmp_path, bin_env, cache)


def test_a_binary_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    env = dict(os.environ)
    cache = HashCache(tmp_path / "cache.json")
    first = identify("cc", tmp_path, env, cache)
    cache.save()

    def refuse(*_args, **_options):
        raise AssertionError("a process was started")

    monkeypatch.setattr(tools, "run_captured", refuse)
    assert identify("cc", tmp_path, env, HashCache(tmp_path / "cache.json")) == first


def test_torch_is_told_from_its_source_text(tmp_path: Path):
    path = tmp_path / "version.py"
    path.write_text(
        "from typing import Optional\n__version__ = '2.13.0+cu126'\ndebug = False\n"
        "cuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n"
    )
    assert read_torch_version(path) == "version=2.13.0+cu126 cuda=12.6"


@pytest.mark.parametrize("text", ["def broken(", "\x00"])
def test_a_torch_that_cannot_be_read_is_told_as_such(tmp_path: Path, text: str):
    (tmp_path / "version.py").write_text(text)
    assert read_torch_version(tmp_path / "version.py") == "not readable"
    assert read_torch_version(tmp_path / "none.py") == "not readable"


def test_probing_torch_does_not_import_it(tmp_path: Path):
    import subprocess

    script = """
import sys
class Block:
    def find_spec(self, name, *_):
        assert name.split(".")[0] != "torch", "torch was imported"
sys.meta_path.insert(0, Block())
from pathlib import Path
from puffrun.artifacts.freshness.hashing import HashCache
from puffrun.artifacts.freshness.probes import PROBES, ProbeSite
print(PROBES["torch"](ProbeSite({}, HashCache(Path("none")))))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("version="), done.stderr


def site(tmp_path: Path, **env: str) -> ProbeSite:
    return ProbeSite(env, HashCache(tmp_path / "cache.json"))


def test_the_asked_cuda_architectures_win(tmp_path: Path):
    assert PROBES["cuda-arch"](site(tmp_path, TORCH_CUDA_ARCH_LIST="8.0;9.0")) == "8.0;9.0"


def test_without_a_gpu_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probes, "NVIDIA_DIR", tmp_path / "none")
    assert PROBES["cuda-arch"](site(tmp_path)) == "no GPU"


def test_gpus_are_asked_once_per_driver_and_set_of_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bin_env: dict
):
    driver = tmp_path / "nvidia"
    information = driver / "gpus" / "0000:01:00.0" / "information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t NVIDIA H200\nIRQ: 1\n")
    (driver / "version").write_text("NVRM version: 550\n")
    monkeypatch.setattr(probes, "NVIDIA_DIR", driver)
    make_tool(tmp_path / "bin", "nvidia-smi", f"echo 9.0; echo 8.0; echo x >> {tmp_path}/asked")
    here = site(tmp_path, **bin_env)
    assert [PROBES["cuda-arch"](here) for _ in range(3)] == ["8.0;9.0"] * 3
    assert (tmp_path / "asked").read_text() == "x\n"
    (driver / "version").write_text("NVRM version: 560\n")
    PROBES["cuda-arch"](here)
    assert (tmp_path / "asked").read_text() == "x\nx\n"
    make_tool(tmp_path / "bin", "nvidia-smi", "exit 9")
    (driver / "version").write_text("NVRM version: 570\n")
    assert PROBES["cuda-arch"](here) == "no GPU"


def test_the_cpu_is_its_model_and_its_features():
    cpuinfo = "processor : 0\nmodel name : Fast 3000\nflags : a c b\n\nmodel name : Other\n"
    same = describe_cpu(cpuinfo.replace("a c b", "c b a"))
    assert describe_cpu(cpuinfo) == same
    assert same.startswith("Fast 3000 features ")
    assert describe_cpu(cpuinfo.replace("a c b", "a b c avx512")) != same


def test_the_python_abi_names_interpreter_and_libc(tmp_path: Path):
    text = PROBES["python-abi"](site(tmp_path))
    assert text.startswith(f"cpython-{sys.version_info[0]}{sys.version_info[1]}-")
    assert "glibc" in text
