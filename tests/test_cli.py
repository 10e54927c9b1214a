"""The command line: every mistake is one line, every end an exit code, nothing pays for torch."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_gpus import build_fake_nvml

from puffrun import __version__
from puffrun.cli import main
from puffrun.cli.train import make_again
from puffrun.errors import StoppedError

PUFFRUN = (sys.executable, "-m", "puffrun")
LAUNCHER_VARIABLES = ("RANK", "PET_", "SLURM_", "CUDA_VISIBLE", "OMP_NUM", "MKL_NUM", "PUFFRUN_")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(LAUNCHER_VARIABLES):
            monkeypatch.delenv(name)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory to stand in, with a script and a package."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    (tmp_path / "package").mkdir()
    (tmp_path / "package/module.py").write_text("print('trained')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*argv, redirect="", **options):
    """Run puffrun as a program; `redirect` is for a shell."""
    command = (
        ["sh", "-c", f"{shlex.join([*PUFFRUN, *argv])} {redirect}"]
        if redirect
        else [*PUFFRUN, *argv]
    )
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, **options
    )


MISTAKES = [
    ("train", "there is nothing to train"),
    ("train nosuch.py", "script nosuch.py does not exist"),
    ("train -m package.nosuch", "module package.nosuch was not found in package package"),
    ("train package", "script package is a directory without `__main__.py`"),
    ("train --cpus 0 train.py", "`--cpus` must be a number of ranks from 1 to 4096, found `0`"),
    ("train --cpus train.py", "`--cpus` must be a number of ranks"),
    ("train --gpus 2 --cpus 2 train.py", "`--gpus` and `--cpus` exclude each other"),
    ("train --gpus 9999 train.py", "`--gpus` must be a number of GPUs"),
    ("train --run-dir /proc/nowhere train.py", "run directory /proc/nowhere cannot be used"),
    ("train --run-dir train.py/x train.py", "train.py/x cannot be used"),
    ("train --run-dir package train.py", "package is not empty"),
    ("train --nodes 2 train.py", "2 nodes were asked for; several nodes are not supported yet"),
    ("train --json train.py", "--json goes with --dry-run"),
    ("train -m", "-m without a module"),
    ("train ''", "TARGET is empty"),
    ("train -c nosuch.toml", "config nosuch.toml does not exist"),
    ("train --grace", "option `--grace` requires an argument"),
    ("train --stall-timout 3 train.py", "no such option: --stall-timout"),
    ("trian train.py", "no such command `trian`"),
    ("report nosuch", "nosuch"),
    ("build-artifacts --nosuch", "no such option: --nosuch"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_one_line_and_exit_2(project, capfd, line, message):
    before = sorted(project.rglob("*"))
    assert main(shlex.split(line)) == 2
    shown = capfd.readouterr()
    error, *rest = shown.err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert len(rest) <= 1
    assert all(hint.startswith("hint: ") for hint in rest)
    assert shown.out == ""
    assert sorted(project.rglob("*")) == before  # nothing was started or written


CONFIG_MISTAKES = [
    ("[train]\nscirpt = 'train.py'", "puffrun.toml: unknown key `scirpt` in [train]"),
    ("[train]\nscript = \n", "puffrun.toml:2: "),
    ("[launch]\ncpus = '2'", "puffrun.toml: `cpus` in [launch] must be"),
    ("[train]\nscript = 'gone.py'", "script gone.py does not exist"),
    ("[train]\nscript = 'train.py'\nenv = { RANK = '3' }", "puffrun.toml: RANK in [train.env]"),
    ("[train]\nscript = 'train.py'\ncwd = 'gone'", "gone is no directory"),
]


@pytest.mark.parametrize(("text", "message"), CONFIG_MISTAKES, ids=[m[0] for m in CONFIG_MISTAKES])
def test_a_mistake_in_the_config(project, capfd, text, message):
    (project / "puffrun.toml").write_text(text)
    assert main(["train"]) == 2
    assert message in capfd.readouterr().err.splitlines()[0]
    assert not (project / ".puffrun").exists()


def test_hints_can_be_typed(project, capfd):
    main(["train", "--stall-timout", "3", "train.py"])
    main(["trian", "train.py"])
    main(["train", "trian.py"])
    hints = [line for line in capfd.readouterr().err.splitlines() if line.startswith("hint: ")]
    assert "--stall-timeout" in hints[0]
    assert hints[1:] == ["hint: did you mean `train`?", "hint: did you mean `train.py`?"]


def test_more_gpus_than_there_are(project):
    build_fake_nvml(project)
    env = os.environ | {"LD_LIBRARY_PATH": str(project), "FAKE_GPUS": "2"}
    shown = start("train", "--gpus", "8", "train.py", env=env)
    assert shown.returncode == 2
    assert shown.stderr.splitlines() == [
        "error: 8 GPUs were asked for, 2 were found on this machine",
        "hint: `--gpus 2`, or `--cpus 8` to run 8 ranks on the CPU",
    ]
    shown = start("train", "--gpus", "8", "train.py", env=env | {"CUDA_VISIBLE_DEVICES": "1"})
    assert "1 of 2 is visible (CUDA_VISIBLE_DEVICES=1)" in shown.stderr
    shown = start("train", "--dry-run", "--json", "train.py", env=env)
    assert json.loads(shown.stdout)["devices"] == ["0", "1"]


def test_the_plan_is_shown_and_nothing_else_happens(project, capfd, monkeypatch):
    monkeypatch.setenv("PET_NNODES", "2")
    assert main(["train", "--cpus", "2", "--dry-run", "train.py", "--lr", "3e-4"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "program     python -u train.py --lr 3e-4   cwd ."
    assert "            ignored: PET_NNODES=2 (left over from another launcher)" in lines
    assert not (project / ".puffrun").exists()


def test_the_plan_as_json(project, capfd):
    argv = ["train", "--cpus", "3", "--dry-run", "--json", "-m", "package.module", "-m", "x"]
    assert main(argv) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["argv"] == [sys.executable, "-u", "-m", "package.module", "-m", "x"]
    assert (plan["world_size"], plan["artifacts"]) == (3, [])
    assert plan["again"] == "puffrun train --cpus 3 -m package.module -m x", "a real run"


def test_the_freshness_of_artifacts_is_in_the_plan(project, capfd):
    (project / "one.c").write_text("int one;")
    (project / "puffrun.toml").write_text(
        '[train]\nscript = "train.py"\n[launch]\ncpus = 1\n'
        '[artifacts.one]\ncmd = ["cc", "-c", "one.c", "-o", "{out}/one.o"]\n'
        'inputs = ["*.c"]\noutputs = ["one.o"]\n'
    )
    assert main(["train", "--dry-run"]) == 0
    assert "artifacts   one  stale: never built" in capfd.readouterr().out
    assert main(["build-artifacts"]) == 0
    assert main(["train", "--dry-run"]) == 0
    assert "artifacts   one  fresh" in capfd.readouterr().out
    (project / "one.c").write_text("int two;")
    assert main(["train", "--dry-run", "--json"]) == 0
    (artifact,) = json.loads(capfd.readouterr().out)["artifacts"]
    assert artifact == {"name": "one", "fresh": False, "reasons": ["one.c changed"], "dir": None}


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("train.py --help", ["train.py", "--help"]),
        ("train.py -- --x", ["train.py", "--", "--x"]),
        ("-- train.py --gpus 8", ["train.py", "--gpus", "8"]),
        ("train.py -m -c x --dry-run", ["train.py", "-m", "-c", "x", "--dry-run"]),
        ("train.py train.lr=1 '' 'a b' -v", ["train.py", "train.lr=1", "", "a b", "-v"]),
        ("train.py --train.learning-rate 1e-4", ["train.py", "--train.learning-rate", "1e-4"]),
    ],
)
def test_what_follows_the_target_is_the_programs(project, capfd, line, target):
    assert main(["train", "--cpus", "1", "--dry-run", "--json", *shlex.split(line)]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["argv"][2:] == [str(project / target[0]), *target[1:]]


def test_a_target_takes_the_place_of_the_configs_program(project, capfd):
    (project / "puffrun.toml").write_text(
        '[train]\nmodule = "package.module"\nargs = ["a"]\nenv = { X = "1" }\n[launch]\ncpus = 3'
    )
    assert main(["train", "--dry-run", "--json"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["argv"][2:] == ["-m", "package.module", "a"]
    assert main(["train", "--dry-run", "--json", "train.py", "b"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["argv"][2:] == [str(project / "train.py"), "b"]
    assert plan["world_size"] == 3
    assert {"name": "X", "value": "1", "why": "puffrun.toml"} in plan["env_set"]


def test_a_relative_target_is_resolved_where_the_user_stands(project, capfd, monkeypatch):
    (project / "puffrun.toml").write_text('[train]\nscript = "train.py"\ncwd = "package"')
    monkeypatch.chdir(project / "package")
    (project / "package/near.py").write_text("")
    argv = ["train", "-c", "../puffrun.toml", "--cpus", "1", "--dry-run", "--json"]
    assert main([*argv, "near.py"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["argv"][2] == str(project / "package/near.py")
    assert plan["state_dir"] == str(project / ".puffrun")
    assert main(argv) == 0
    assert json.loads(capfd.readouterr().out)["argv"][2] == str(project / "train.py")


@pytest.mark.parametrize(
    ("line", "again"),
    [
        ("train --gpus 2 train.py 'a b'", "puffrun train --gpus 2 train.py 'a b'"),
        ("train --run-dir x --grace 3 train.py", "puffrun train --grace 3 train.py"),
        ("train --run-dir=x train.py --run-dir y", "puffrun train train.py --run-dir y"),
    ],
)
def test_the_command_that_does_it_again(line, again):
    words = shlex.split(line)
    assert make_again(words, words[words.index("train.py") :]) == again


def test_version_and_help(capfd):
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"puffrun {__version__}\n"
    assert main(["--help"]) == 0
    shown = capfd.readouterr().out
    assert all(f"\n  {command} " in shown for command in ("train", "build-artifacts", "report"))
    assert main([]) == 2
    assert capfd.readouterr().out == shown


def test_the_help_of_each_command(capfd):
    for command in ("train", "build-artifacts", "report"):
        assert main([command, "--help"]) == 0
        assert f"Usage: puffrun {command} " in capfd.readouterr().out


@pytest.mark.parametrize("where", ["state", "temporary"])
def test_a_bug_leaves_a_crash_log(project, capfd, monkeypatch, where):
    def fail(*_args, **_options):
        raise RuntimeError("a bug of ours")

    name = "detect_allocation" if where == "state" else "load_config"
    monkeypatch.setattr(f"puffrun.cli.train.{name}", fail)
    monkeypatch.setattr("tempfile.tempdir", str(project / "package"))
    assert main(["train", "train.py"]) == 70
    error, hint = capfd.readouterr().err.splitlines()
    assert error == "error: a bug in puffrun: RuntimeError: a bug of ours"
    path = Path(hint.removeprefix("hint: the traceback is in "))
    assert path.name == "crash.log"
    home = project / (".puffrun" if where == "state" else "package")
    assert path.is_relative_to(home)
    text = path.read_text()
    assert "command: puffrun train train.py" in text
    assert "raise RuntimeError" in text


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt(), 130), (StoppedError(15), 143), (SystemExit(3), 3)]
)
def test_other_ends(project, monkeypatch, raised, code):
    def stop(*_args, **_options):
        raise raised

    monkeypatch.setattr("puffrun.cli.train.detect_allocation", stop)
    assert main(["train", "train.py"]) == code


def test_a_directory_that_is_gone(tmp_path):
    script = f"mkdir gone && cd gone && rmdir ../gone && {shlex.join(PUFFRUN)} train x.py"
    shown = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert shown.returncode == 2
    assert "the current directory does not exist any more" in shown.stderr


DRY = ("train", "--cpus", "2", "--dry-run", "train.py")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams(project, closed):
    shown = start(*DRY, redirect=closed)
    assert shown.returncode == 0
    assert shown.stderr == ""
    failed = start("train", "nosuch.py", redirect=closed)
    assert failed.returncode == 2
    assert failed.stdout == ""


def test_nobody_reads_our_output(project):
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        shown = subprocess.run(
            [*PUFFRUN, *DRY], stdout=write_fd, stderr=subprocess.PIPE, check=False, timeout=60
        )
    finally:
        os.close(write_fd)
    assert shown.returncode == 141
    assert shown.stderr == b""


def test_a_full_disk(project):
    shown = start(*DRY, redirect=">/dev/full")
    assert shown.returncode == 2
    assert shown.stderr.splitlines() == [
        "error: standard output cannot be written: No space left on device"
    ]
    shown = start("--help", redirect=">/dev/full")
    assert shown.returncode == 73
    assert shown.stderr.splitlines() == ["error: No space left on device"]


@pytest.mark.parametrize("words", ["report", "smoke --junit", "smoke --wheel"], ids=str)
def test_a_name_that_is_too_long_is_a_mistake(project, words):
    end = ".whl" if "--wheel" in words else ""
    shown = start(*f"{words} {'a' * 300}{end}".split())
    assert shown.returncode == 2
    assert "bug" not in shown.stderr
    assert "File name too long" in shown.stderr


def test_names_that_are_no_text(project):
    script = os.fsdecode(b"tr\xff\xfein.py")
    (project / script).write_text("")
    shown = start(*DRY[:-1], script, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert shown.returncode == 0
    assert "tr\\udcff\\udcfein.py" in shown.stdout
    assert start(*DRY[:-1], "--json", script).returncode == 0
    assert start("train", script + "x").returncode == 2


BLOCK = """
import sys
from importlib.machinery import PathFinder

class Block:
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        spec = PathFinder.find_spec(name)
        spec.loader = self
        return spec

    def create_module(self, spec):
        raise SystemExit("torch was imported")

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Block())
"""


def test_nothing_but_the_ranks_imports_torch(project):
    (project / "sitecustomize.py").write_text(BLOCK)
    env = os.environ | {"PYTHONPATH": str(project)}
    blocked = subprocess.run(
        [sys.executable, "-c", "import torch"],
        env=env,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"torch was imported" in blocked.stderr
    (project / "one.c").write_text("int one;")
    (project / "puffrun.toml").write_text(
        '[train]\nscript = "train.py"\n[artifacts.one]\nprobe = ["python-abi", "torch"]\n'
        'cmd = ["cc", "-c", "one.c", "-o", "{out}/one.o"]\ninputs = ["*.c"]\noutputs = ["one.o"]\n'
    )
    for argv, code in (
        (["--help"], 0),
        (["--version"], 0),
        (["train", "--help"], 0),
        (["train", "--cpus", "2", "--dry-run"], 0),
        (["train", "--cpus", "2", "--dry-run", "-m", "torch.distributed.run"], 0),
        (["train", "nosuch.py"], 2),
        (["build-artifacts"], 0),
        (["build-artifacts", "--check"], 0),
        (["report"], 2),
    ):
        shown = start(*argv, env=env)
        assert (shown.returncode, "torch was imported" in shown.stderr) == (code, False), argv


def measure(argv, times):
    """Return the shortest wall time of some runs, in seconds."""
    best_s = float("inf")
    for _ in range(times):
        began = time.monotonic()
        subprocess.run(argv, capture_output=True, check=True, timeout=120)
        best_s = min(best_s, time.monotonic() - began)
    return best_s


def test_help_costs_a_fifth_of_torchruns():
    torchrun_s = measure([sys.executable, "-m", "torch.distributed.run", "--help"], 2)
    puffrun_s = measure([*PUFFRUN, "--help"], 5)
    assert puffrun_s <= torchrun_s / 5


def test_every_command_of_the_page_makes_a_plan(project, capfd):
    (project / "puffrun.toml").write_text('[train]\nscript = "train.py"')
    page = (Path(__file__).parents[1] / "docs/cli.md").read_text()
    lines = [
        line
        for block in page.split("```sh\n")[1:]
        for line in block.split("```")[0].splitlines()
        if line.startswith("puffrun train")
    ]
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line, comments=True)
        assert main(["train", "--dry-run", *words[2:]]) == 0, line
    capfd.readouterr()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["foo"], ["no such command `foo`", "hint: `puffrun --help`"]),
        (["build-artifacts", "--jobs", "0"], ["`--jobs` must be a whole number, 1 or more"]),
        (["smoke", "--steps", "x"], ["`--steps` must be a whole number"]),
        (["train", "-c", "/dev/null", "x.py"], ["config /dev/null is not a regular file"]),
        (["build-artifacts"], ["nothing to do: there is no config with an [artifacts.NAME]"]),
    ],
)
def test_small_mistakes_in_our_own_words(tmp_path, monkeypatch, capfd, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(words) == (2 if len(words) != 1 or words == ["foo"] else 0)
    shown = capfd.readouterr()
    assert all(each in shown.err for each in said), shown.err
    assert "nput should" not in shown.err
    assert shown.out == ""


def test_a_wrong_launch_key_names_every_key_once(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "puffrun.toml").write_text("[launch]\nzzz = 1\n")
    assert main(["train", "x.py"]) == 2
    hint = capfd.readouterr().err
    assert "`stall-timeout`" in hint
    assert "`stall_timeout`" not in hint


def test_scripts_that_are_there_are_not_called_known(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.py").write_text("")
    assert main(["train", "quite_different.py"]) == 2
    assert "hint: there is `ok.py`" in capfd.readouterr().err
