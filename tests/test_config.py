"""Configs: where they are found, what they become, and how each mistake is called."""

from pathlib import Path

import pytest

from puffrun.config import (
    ArtifactSpec,
    LaunchOptions,
    RunConfig,
    TrainSection,
    apply_flags,
    load_config,
    name_nearest,
)
from puffrun.errors import UsageError

WHOLE = """
[train]
script = "src/train.py"
args = ["--lr", "3e-4"]
cwd = "work"
env = { WANDB_MODE = "offline", DEPTH = 3 }
artifacts = ["visualize"]

[launch]
gpus = 8
grace = 2.5
stall-timeout = 0
exit_timeout = 7
show-ranks = "all"
preload = false
run-dir = "out"

[artifacts.visualize]
cmd = ["cc", "visualize.c", "-o", "{out}/visualize"]
inputs = ["*.c"]
outputs = ["visualize"]
install = { visualize = "bin/visualize" }
timeout = 60

[artifacts.ocean]
cmd = ["make"]
outputs = ["ocean"]
mode = "inplace"
"""


def write(directory: Path, text: str, name: str = "puffrun.toml") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_whole_config(tmp_path):
    path = write(tmp_path, WHOLE)
    assert load_config(None, tmp_path) == RunConfig(
        root_dir=tmp_path,
        state_dir=tmp_path / ".puffrun",
        path=path,
        train=TrainSection(
            script=tmp_path / "src/train.py",
            args=("--lr", "3e-4"),
            cwd=tmp_path / "work",
            env=(("WANDB_MODE", "offline"), ("DEPTH", "3")),
            artifacts=("visualize",),
        ),
        launch=LaunchOptions(
            gpus=8,
            grace_s=2.5,
            stall_timeout_s=0.0,
            exit_timeout_s=7.0,
            show_ranks="all",
            preload=False,
            run_dir=tmp_path / "out",
        ),
        artifacts=(
            ArtifactSpec(
                name="visualize",
                cmd=("cc", "visualize.c", "-o", "{out}/visualize"),
                inputs=("*.c",),
                outputs=("visualize",),
                install=(("visualize", "bin/visualize"),),
                timeout_s=60.0,
            ),
            ArtifactSpec(name="ocean", cmd=("make",), outputs=("ocean",), mode="inplace"),
        ),
    )


def test_no_config_at_all(tmp_path):
    assert load_config(None, tmp_path) == RunConfig(tmp_path, tmp_path / ".puffrun")


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (("puffrun.toml", "pyproject.toml", "configs/default.toml"), "puffrun.toml"),
        (("pyproject.toml", "configs/default.toml"), "pyproject.toml"),
        (("configs/default.toml",), "configs/default.toml"),
    ],
)
def test_discovery(tmp_path, files, chosen):
    for name in files:
        table = "[tool.puffrun.train]" if name == "pyproject.toml" else "[train]"
        write(tmp_path, f'{table}\nscript = "x.py"', name)
    config = load_config(None, tmp_path)
    assert config.path == tmp_path / chosen
    assert config.state_dir == tmp_path / ".puffrun"  # never inside configs/
    assert config.root_dir == (tmp_path / chosen).parent
    assert config.train.script == (tmp_path / chosen).parent / "x.py"


def test_a_pyproject_of_somebody_else_is_passed_over(tmp_path):
    write(tmp_path, '[tool.ruff]\nselect = ["ALL"]', "pyproject.toml")
    write(tmp_path, '[train]\nmodule = "a.b"', "configs/default.toml")
    assert load_config(None, tmp_path).train.module == "a.b"


def test_root_moves_what_relative_paths_mean(tmp_path):
    (tmp_path / "src/demo").mkdir(parents=True)
    write(tmp_path, 'root = "../src/demo"\n[train]\nscript = "t.py"', "configs/default.toml")
    config = load_config(None, tmp_path)
    assert config.root_dir == tmp_path / "src/demo"
    assert config.train.script == tmp_path / "src/demo/t.py"
    assert config.state_dir == tmp_path / ".puffrun"


def test_a_config_elsewhere_keeps_its_state_beside_it(tmp_path):
    write(tmp_path, "", "project/configs/big.toml")
    config = load_config(Path("project/configs/big.toml"), tmp_path)
    assert config.state_dir == tmp_path / "project/.puffrun"


def test_the_packaged_config(tmp_path):
    config = load_config(Path("demo"), tmp_path)
    assert config.train.module == "puffrun.demo.train"
    assert (config.root_dir / "drive.h").is_file()
    assert config.state_dir == tmp_path / ".puffrun"


def test_a_file_called_demo_wins(tmp_path):
    write(tmp_path, '[train]\nmodule = "mine"', "demo")
    assert load_config(Path("demo"), tmp_path).train.module == "mine"


MISTAKES = [
    ("[train]\nscirpt = 'x'", "unknown key `scirpt` in [train]", "did you mean `script`?"),
    ("[lunch]\ngpus = 1", "unknown key `lunch` at the top level", "did you mean `launch`?"),
    ("[launch]\nstall-timout = 1", "unknown key `stall-timout` in [launch]", "stall-timeout"),
    ("[artifacts.v]\ncmd=['a']\noutputs=['a']\nneed=[]", "in [artifacts.v]", "`needs`"),
    ("[train\n", "puffrun.toml:1: ", None),
    ("[train]\nscript = 'a'\nscript = 'b'", "puffrun.toml:3: ", None),
    ('x = """', "puffrun.toml:1: ", None),
    ("[train]\nscript = 3", "`script` in [train] must be a string that is not empty", None),
    ("[train]\nscript = ''", "found the string ``", None),
    ("[train]\nargs = ['a']", "`args` in [train] without", None),
    ("[train]\nscript = 'a'\nargs = '-x 1'", "must be a list of strings", '`args = ["-x", "1"]`'),
    ("[train]\nscript = 'a'\nargs = ['-x', 1]", "found the integer 1", 'write `"1"`'),
    ("[train]\nscript = 'a'\nmodule = 'b'", "exclude each other", None),
    ("[train]\nmodule = 'a b'", "must be a module such as", None),
    ("[train]\nenv = { A = true }", "`A` in [train.env] must be a string, found true", None),
    ("[train]\nenv = { 'A=B' = 'x' }", "`A=B` in [train.env]", None),
    ("[train]\nartifacts = ['x']", "names `x`, which is no artifact", None),
    ("train = 3", "`train` must be a table, found the integer 3", None),
    ("root = 'nowhere'", "`root` is `nowhere`, which is no directory", None),
    ("[launch]\ngpus = '8'", "`gpus` in [launch] must be", None),
    ("[launch]\ncpus = 0", "found the integer 0", None),
    ("[launch]\ncpus = true", "found true", None),
    ("[launch]\ngrace = -1", "`grace` in [launch] must be a number of seconds, 0 or more", None),
    ("[launch]\ngrace = nan", "found the number nan", None),
    ("[launch]\ngrace = inf", "found the number inf", None),
    ("[launch]\nshow-ranks = '3-1'", "`show-ranks` in [launch]", None),
    ("[launch]\ngpu-ids = [1, 1]", "`gpu-ids` in [launch]", None),
    ("[launch]\nexit-timeout = 1\nexit_timeout = 2", "given twice in [launch]", None),
    ("[launch]\ngpus = 2\ncpus = 2", "exclude each other", "`auto`"),
    ("[artifacts]\njobs = 2", "`jobs` in [artifacts] must be a table", None),
    ("[artifacts.'a b']\ncmd=['a']\noutputs=['a']", "cannot be called `a b`", "letters"),
    ("[artifacts.v]\noutputs=['a']", "[artifacts.v] needs `cmd`", None),
    ("[artifacts.v]\ncmd=['a']", "[artifacts.v] needs `outputs`", None),
    ("[artifacts.v]\ncmd='cc -c v.c'\noutputs=['a']", "`cmd`", '`cmd = ["cc", "-c", "v.c"]`'),
    ("[artifacts.v]\ncmd=['a']\noutputs=['../a']", "has `../a`", None),
    ("[artifacts.v]\ncmd=['a']\noutputs=['/a']", "has `/a`", None),
    ("[artifacts.v]\ncmd=['a']\noutputs=['a']\nmode='x'", "must be `staged` or `inplace`", None),
    ("[artifacts.v]\ncmd=['a']\noutputs=['a']\ntimeout=0", "`timeout`", None),
    ("[artifacts.v]\ncmd=['a']\noutputs=['a']\ninstall={a='../b'}", "`install`", None),
]


@pytest.mark.parametrize(("text", "message", "hint"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_one_line_that_names_it(tmp_path, text, message, hint):
    write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_config(None, tmp_path)
    assert message in caught.value.message
    assert caught.value.message.startswith("puffrun.toml:")
    assert "\n" not in caught.value.message
    assert (hint or "") in (caught.value.hint or "")


def test_a_file_that_is_not_there(tmp_path):
    write(tmp_path, "", "puffrun.toml")
    with pytest.raises(UsageError) as caught:
        load_config(Path("pufrun.toml"), tmp_path)
    assert "pufrun.toml does not exist" in caught.value.message
    assert caught.value.hint == "did you mean `puffrun.toml`?"


def test_a_directory_and_a_binary_file(tmp_path):
    (tmp_path / "puffrun.toml").mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load_config(None, tmp_path)
    (tmp_path / "b.toml").write_bytes(b"[train]\n\xff")
    with pytest.raises(UsageError, match=r"b\.toml:2: not UTF-8 text"):
        load_config(Path("b.toml"), tmp_path)


def test_a_pyproject_without_our_table_is_refused_when_named(tmp_path):
    write(tmp_path, "[tool.ruff]", "pyproject.toml")
    with pytest.raises(UsageError, match=r"has no \[tool.puffrun\]"):
        load_config(Path("pyproject.toml"), tmp_path)


FLAGS = [
    ({}, LaunchOptions(), LaunchOptions()),
    ({"gpus": "8"}, LaunchOptions(cpus=2), LaunchOptions(gpus=8)),
    ({"cpus": "3"}, LaunchOptions(gpus=8), LaunchOptions(cpus=3)),
    ({"cpus": "3"}, LaunchOptions(gpus="auto", cpus=2), LaunchOptions(cpus=3)),
    ({"gpus": "auto"}, LaunchOptions(cpus=4), LaunchOptions(gpus="auto", cpus=4)),
    ({"gpus": "all"}, LaunchOptions(gpu_ids=("1",)), LaunchOptions(gpus="all")),
    ({"gpu-ids": "0,2"}, LaunchOptions(gpus=8), LaunchOptions(gpu_ids=("0", "2"))),
    ({"gpu-ids": "3"}, LaunchOptions(), LaunchOptions(gpu_ids=("3",))),
    ({"grace": "0.5"}, LaunchOptions(cpus=2), LaunchOptions(cpus=2, grace_s=0.5)),
    ({"timeout": "0"}, LaunchOptions(timeout_s=9.0), LaunchOptions()),
    ({"timeout": "9"}, LaunchOptions(), LaunchOptions(timeout_s=9.0)),
    ({"show-ranks": "0,2-4"}, LaunchOptions(), LaunchOptions(show_ranks=(0, 2, 3, 4))),
    ({"show-ranks": "all"}, LaunchOptions(), LaunchOptions(show_ranks="all")),
    ({"preload": False}, LaunchOptions(), LaunchOptions(preload=False)),
    ({"preload": True}, LaunchOptions(preload=False), LaunchOptions()),
    ({"run-dir": "7"}, LaunchOptions(), LaunchOptions(run_dir=Path("/here/7"))),
]


@pytest.mark.parametrize(("flags", "options", "expected"), FLAGS)
def test_flags_over_config(flags, options, expected):
    assert apply_flags(options, flags, Path("/here")) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"cpus": "0"}, "`--cpus` must be a number of ranks from 1 to 4096, found `0`"),
        ({"cpus": "two"}, "found `two`"),
        ({"cpus": "99999"}, "found `99999`"),
        ({"gpus": "1.5"}, "`--gpus` must be"),
        ({"gpus": "2", "cpus": "2"}, "`--gpus` and `--cpus` exclude each other"),
        ({"gpu-ids": "0,,1"}, "`--gpu-ids` must be"),
        ({"grace": "1e999"}, "`--grace` must be"),
        ({"rdzv-endpoint": "node0"}, "must be HOST:PORT"),
        ({"run-dir": ""}, "`--run-dir` must be a directory"),
        ({"show-ranks": ""}, "`--show-ranks` must be"),
    ],
)
def test_a_wrong_flag_is_named(flags, message):
    with pytest.raises(UsageError) as caught:
        apply_flags(LaunchOptions(), flags, Path("/here"))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("Stall_Timeout", ["stall-timeout", "timeout"], "stall-timeout"),
        ("visualise", ["visualize", "drive"], "visualize"),
        ("zzz", ["visualize", "drive"], None),
    ],
)
def test_the_nearest_name(word, known, near):
    assert name_nearest(word, known) == near


def test_every_toml_block_of_the_page_loads(tmp_path):
    page = (Path(__file__).parents[1] / "docs/config.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```toml\n")[1:]]
    assert len(blocks) >= 2
    for block in blocks:
        load_config(write(tmp_path, block), tmp_path)
