"""The configs that people copy: they load, their artifacts build, their programs run."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from harness import ask

from puffrun.config import load_config

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


@pytest.fixture
def configs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "configs", tmp_path / "configs"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_loads_and_its_inputs_are_listed(path):
    config = load_config(path, ROOT)
    assert config.train.script or config.train.module
    if "pufferlib" not in path.name:  # whose sources are elsewhere
        inputs = [(spec.name, glob) for spec in config.artifacts for glob in spec.inputs]
        assert [found for found in inputs if not any(config.root_dir.glob(found[1]))] == []


def test_the_packaged_config_is_the_default_one():
    packaged = ROOT / "src" / "puffrun" / "demo" / "default.toml"
    assert packaged.read_bytes() == (ROOT / "configs" / "default.toml").read_bytes()


def test_the_demo_names_every_file_that_it_compiles():
    config = tomllib.loads((ROOT / "configs" / "default.toml").read_text())
    demo = ROOT / "src" / "puffrun" / "demo"
    for artifact in config["artifacts"].values():
        source = next(part for part in artifact["cmd"] if part.endswith(".c"))
        command = ["cc", "-MM", source]
        made = subprocess.run(command, cwd=demo, check=True, capture_output=True, text=True)
        used = set(made.stdout.replace("\\\n", "").split(":")[1].split())
        listed = {path.name for glob in artifact["inputs"] for path in demo.glob(glob)}
        assert used <= listed


def test_a_plain_script(configs):
    done = ask("train", "-c", "script.toml", cwd=configs, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "hello from the config: y = " in done.stdout


def test_three_artifacts_that_need_each_other(configs):
    done = ask("train", "-c", "three-artifacts.toml", cwd=configs, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "step 300  loss 0.0" in done.stdout
    maker = configs / "examples" / "three" / "make_header.py"
    maker.write_text(maker.read_text() + "# a change that changes no byte of the header\n")
    done = ask("build-artifacts", "-c", "three-artifacts.toml", cwd=configs, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    assert "artifact header  built" in done.stderr
    assert "artifact waves  fresh" in done.stderr
    assert "artifact samples  fresh" in done.stderr
