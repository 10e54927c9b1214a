"""Plans: devices, environment, program and run directory, decided and checked."""
# ruff: noqa: E501 - golden texts are as long as they are

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from puffrun.cluster import Allocation, Gpu, Inventory
from puffrun.cluster.visible import find_visible
from puffrun.config import ArtifactSpec, LaunchOptions, RunConfig, TrainSection
from puffrun.console.plan_text import render_plan
from puffrun.errors import UsageError
from puffrun.plan import (
    Devices,
    Invocation,
    check_plan,
    choose_devices,
    create_run_dir,
    make_environment,
    make_plan,
    plan_as_json,
)
from puffrun.plan.file_checks import check_script
from puffrun.plan.target_module import check_module, find_rank_path
from puffrun.rundir import RunDir

HERE = Path("/here")
CPU_ONLY = Inventory(problem="no driver")


def machine(count=0, variable=None, cores=12, name="NVIDIA H100"):
    gpus = tuple(Gpu(i, f"GPU-{i}000", name) for i in range(count))
    inventory = Inventory(gpus) if gpus else CPU_ONLY
    return Allocation(cores, inventory, find_visible(gpus, variable), variable)


def config(**launch):
    train = TrainSection(script=HERE / "train.py", args=("--lr", "3e-4"))
    return RunConfig(HERE, HERE / ".puffrun", HERE / "puffrun.toml", train, LaunchOptions(**launch))


def plan(asked=None, allocation=None, environ=None, cwd=HERE):
    invocation = Invocation(cwd, "/usr/bin/python3", environ or {}, "1130-1042-k7fq2", "puffrun x")
    return make_plan(asked or config(), allocation or machine(), invocation)


DEVICES = [
    (LaunchOptions(), machine(), Devices(2)),
    (LaunchOptions(), machine(4), Devices(4, ("0", "1", "2", "3"), "NVIDIA H100")),
    (LaunchOptions(gpus="auto"), machine(), Devices(2)),
    (LaunchOptions(gpus="auto", cpus=5), machine(), Devices(5)),
    (LaunchOptions(gpus="auto", cpus=5), machine(1), Devices(1, ("0",), "NVIDIA H100")),
    (LaunchOptions(cpus=5), machine(4), Devices(5)),
    (LaunchOptions(gpus=2), machine(4), Devices(2, ("0", "1"), "NVIDIA H100")),
    (LaunchOptions(gpus=2), machine(4, "3,1,0"), Devices(2, ("3", "1"), "NVIDIA H100")),
    (LaunchOptions(gpus="all"), machine(4, "3,1"), Devices(2, ("3", "1"), "NVIDIA H100")),
    (LaunchOptions(), machine(4, ""), Devices(2)),
    (LaunchOptions(gpu_ids=("2", "0")), machine(4), Devices(2, ("2", "0"), "NVIDIA H100")),
    (LaunchOptions(gpu_ids=("GPU-2000",)), machine(4), Devices(1, ("2",), "NVIDIA H100")),
    (LaunchOptions(gpu_ids=("2",)), machine(4, "GPU-2"), Devices(1, ("GPU-2",), "NVIDIA H100")),
    (LaunchOptions(gpus=1, gpu_ids=("2",)), machine(4), Devices(1, ("2",), "NVIDIA H100")),
]


@pytest.mark.parametrize(("options", "allocation", "devices"), DEVICES)
def test_devices(options, allocation, devices):
    assert choose_devices(options, allocation) == devices
    assert devices.backend == ("nccl" if devices.entries else "gloo")


TOO_FEW = [
    (
        LaunchOptions(gpus=8),
        machine(4, "0,1"),
        "8 GPUs were asked for, 2 of 4 are visible (CUDA_VISIBLE_DEVICES=0,1)",
        "`--gpus 2`, or `--cpus 8` to run 8 ranks on the CPU",
    ),
    (
        LaunchOptions(gpus=8),
        machine(2, "0,1"),
        "8 GPUs were asked for, 2 are visible (CUDA_VISIBLE_DEVICES=0,1)",
        "`--gpus 2`, or `--cpus 8` to run 8 ranks on the CPU",
    ),
    (
        LaunchOptions(gpus=3),
        machine(1),
        "3 GPUs were asked for, 1 was found on this machine",
        "`--gpus 1`, or `--cpus 3` to run 3 ranks on the CPU",
    ),
    (
        LaunchOptions(gpus=1),
        machine(),
        "1 GPU was asked for, none was found on this machine (no driver)",
        "`--cpus 1` to run 1 rank on the CPU",
    ),
    (
        LaunchOptions(gpus="all"),
        machine(2, ""),
        "all GPUs were asked for, none of 2 is visible (CUDA_VISIBLE_DEVICES=)",
        "`--cpus 2` to run 2 ranks on the CPU",
    ),
    (
        LaunchOptions(gpu_ids=("0", "5")),
        machine(4, "0,1"),
        "GPU 5 was asked for, 2 of 4 are visible (CUDA_VISIBLE_DEVICES=0,1)",
        "`--gpu-ids 0,1`",
    ),
    (
        LaunchOptions(gpu_ids=("0",)),
        machine(),
        "GPU 0 was asked for, none was found on this machine (no driver)",
        "`--cpus 1` to run on the CPU",
    ),
    (
        LaunchOptions(gpus=3, gpu_ids=("0", "1")),
        machine(4),
        "3 GPUs were asked for, but --gpu-ids names 2: 0,1",
        "give one of `--gpus` and `--gpu-ids`",
    ),
]


@pytest.mark.parametrize(("options", "allocation", "message", "hint"), TOO_FEW)
def test_too_few_devices(options, allocation, message, hint):
    with pytest.raises(UsageError) as caught:
        choose_devices(options, allocation)
    assert (caught.value.message, caught.value.hint) == (message, hint)


TWO_ON_CPU = Devices(2)


def changes(environ, configured=(), devices=TWO_ON_CPU, cores=12):
    made = make_environment(environ, configured, "puffrun.toml", devices, cores)
    assert set(made.env) >= {(name, value) for name, value, _ in made.changes}
    return {name: value for name, value, _ in made.changes}, dict(made.env)


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@pytest.mark.parametrize(
    ("environ", "cores", "expected"),
    [
        ({}, 12, dict.fromkeys(THREADS, "6")),
        ({}, 13, dict.fromkeys(THREADS, "6")),
        ({}, 1, dict.fromkeys(THREADS, "1")),
        ({"OMP_NUM_THREADS": "4"}, 12, dict.fromkeys(THREADS[1:], "4")),
        ({"OMP_NUM_THREADS": "4,2"}, 12, {}),
        ({"MKL_NUM_THREADS": "3"}, 12, {n: "6" for n in THREADS if n != "MKL_NUM_THREADS"}),
        (dict.fromkeys(THREADS, "9"), 12, {}),
    ],
)
def test_threads_are_shared_out_only_where_unset(environ, cores, expected):
    changed, env = changes(environ, cores=cores)
    assert {name: changed[name] for name in changed if name in THREADS} == expected
    assert env.items() >= environ.items()


def test_an_outer_launcher_does_not_leak():
    outer = {
        "RANK": "3",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "8",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "x",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        "PET_NNODES": "2",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_ERROR_FILE": "/tmp/x",
    }
    run = {"PUFFRUN_RUN_ID": "a", "PUFFRUN_RUN_DIR": "b", "PUFFRUN_ARTIFACT_X": "c"}
    ours = {"PATH": "/bin", "PUFFRUN_MAX_STEPS": "7", "NCCL_DEBUG": "INFO", "RANKING": "1"}
    made = make_environment(outer | run | ours, (), "", Devices(2), 2)
    kept = dict(made.env)
    assert kept.keys() & (outer.keys() | run.keys()) == set()
    assert kept.items() >= ours.items()
    assert dict(made.ignored) == outer


def test_devices_are_told_to_the_ranks():
    changed, _ = changes({}, devices=Devices(2, ("3", "1"), "H100"))
    assert changed["CUDA_VISIBLE_DEVICES"] == "3,1"
    changed, _ = changes({"CUDA_VISIBLE_DEVICES": "0,1"}, devices=Devices(2))
    assert changed["CUDA_VISIBLE_DEVICES"] == ""
    changed, env = changes({"CUDA_VISIBLE_DEVICES": "0"}, devices=Devices(1, ("0",), "H100"))
    assert "CUDA_VISIBLE_DEVICES" not in changed
    assert env["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_config_beats_the_environment():
    changed, env = changes(
        {"WANDB_MODE": "online", "OMP_NUM_THREADS": "1"},
        (("WANDB_MODE", "offline"), ("OMP_NUM_THREADS", "5")),
    )
    assert changed["WANDB_MODE"] == env["WANDB_MODE"] == "offline"
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "5"


@pytest.mark.parametrize("name", ["RANK", "PET_NNODES", "CUDA_VISIBLE_DEVICES", "PUFFRUN_RUN_ID"])
def test_the_config_cannot_set_what_is_decided_here(name):
    with pytest.raises(UsageError, match=rf"^puffrun.toml: {name} in \[train.env\]"):
        changes({}, ((name, "1"),))


def test_a_plan():
    made = plan(environ={"HOME": "/root", "PET_NNODES": "2"})
    assert made.argv == ("/usr/bin/python3", "-u", "/here/train.py", "--lr", "3e-4")
    assert (made.program, made.cwd, made.world_size) == ("train.py", HERE, 2)
    assert made.run_dir == HERE / ".puffrun/runs/1130-1042-k7fq2"
    assert made.env_ignored == (("PET_NNODES", "2"),)


def test_a_module_and_a_run_directory_of_ones_own():
    asked = config(run_dir=Path("/there"))
    train = TrainSection(module="pkg.mod", args=("-m", "x"), cwd=Path("/work"))
    made = plan(replace(asked, train=train))
    assert made.argv[1:] == ("-u", "-m", "pkg.mod", "-m", "x")
    assert (made.program, made.cwd, made.run_dir) == ("-m pkg.mod", Path("/work"), Path("/there"))


def test_artifacts_are_those_that_train_names():
    specs = tuple(ArtifactSpec(name, ("cc",), (name,)) for name in "abc")
    asked = replace(config(), artifacts=specs)
    assert plan(asked).artifacts == specs
    asked = replace(asked, train=replace(asked.train, artifacts=("b",)))
    assert plan(asked).artifacts == specs[1:2]


@pytest.mark.parametrize(
    ("asked", "allocation", "message"),
    [
        (config(nodes=2), machine(), "2 nodes were asked for; several nodes are not supported"),
        (config(), replace(machine(), nodes=3), "3 nodes were given by Slurm"),
        (config(node_rank=1), machine(), "--node-rank 1 does not exist on 1 node"),
        (config(rdzv_endpoint="a:1"), machine(), "--rdzv-endpoint is for several nodes"),
        (config(show_ranks=(0, 2)), machine(), "names rank 2, and the run has ranks 0 to 1"),
        (config(show_ranks=(1,), cpus=1), machine(), "the run has rank 0 only"),
        (replace(config(), train=TrainSection()), machine(), "there is nothing to train"),
    ],
)
def test_plans_that_cannot_be(asked, allocation, message):
    with pytest.raises(UsageError) as caught:
        plan(asked, allocation)
    assert message in caught.value.message


def test_one_node_asked_for_beats_slurm():
    assert plan(config(nodes=1), replace(machine(), nodes=3)).nodes == 1


def test_the_json_has_no_secrets():
    asked = config()
    train = replace(asked.train, env=(("WANDB_MODE", "offline"),))
    made = plan(replace(asked, train=train), environ={"AWS_SECRET": "hunter2", "PET_X": "1"})
    text = json.dumps(plan_as_json(made))
    assert "hunter2" not in text
    values = json.loads(text)
    assert {"name": "WANDB_MODE", "value": "offline", "why": "puffrun.toml"} in values["env_set"]
    assert values["env_ignored"] == [{"name": "PET_X", "value": "1"}]
    assert values["world_size"] == 2


def test_the_text_of_a_gpu_plan():
    asked = config(gpus=2, stall_timeout_s=0.0, timeout_s=90.0, max_restarts=3)
    train = replace(asked.train, env=(("WANDB_MODE", "offline"),))
    made = plan(replace(asked, train=train), machine(4), {"PET_NNODES": "2"})
    rows = [("visualize", "stale: drive.h changed"), ("drive_env", "fresh")]
    assert render_plan(made, rows, HERE) == [
        "program     python -u train.py --lr 3e-4   cwd .",
        "ranks       2 on this machine, GPU 0 and 1, NVIDIA H100 (NCCL)",
        "            forked from one process that has imported torch (--preload)",
        "artifacts   visualize  stale: drive.h changed",
        "            drive_env  fresh",
        "environment WANDB_MODE=offline (puffrun.toml)   CUDA_VISIBLE_DEVICES=0,1 (one GPU per rank)",
        "            OMP_NUM_THREADS=6 MKL_NUM_THREADS=6 OPENBLAS_NUM_THREADS=6 NUMEXPR_NUM_THREADS=6",
        "            (12 cores / 2 ranks)",
        "            ignored: PET_NNODES=2 (left over from another launcher)",
        "watch       grace 10 s   stall off   exit 60 s   at most 90 s   restarts 3",
        "run         .puffrun/runs/<id>",
        "torchrun    python -m torch.distributed.run --nnodes 1 --nproc-per-node 2 --rdzv-id <id> …",
    ]


def test_the_text_of_a_cpu_plan_elsewhere():
    asked = replace(config(run_dir=Path("/there")), train=TrainSection(module="a.b", cwd=HERE))
    lines = render_plan(plan(asked), [], Path("/else"))
    assert lines[:4] == [
        "program     python -u -m a.b   cwd /here",
        "ranks       2 on this machine, on the CPU (gloo)",
        "            forked from one process that has imported torch (--preload)",
        "artifacts   none",
    ]
    assert "run         /there" in lines


def test_scripts_that_python_can_run(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("")
    check_script(script, "train.py")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__main__.py").write_text("")
    check_script(package, "package")
    link = tmp_path / "link.py"
    link.symlink_to(script)
    check_script(link, "link.py")


def test_scripts_that_python_cannot_run(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "with_one").mkdir()
    (tmp_path / "with_one" / "go.py").write_text("")
    (tmp_path / "loop.py").symlink_to("loop.py")
    os.mkfifo(tmp_path / "fifo.py")
    cases = {
        "trian.py": ("script trian.py does not exist", "did you mean `train.py`?"),
        "pkg.mod": ("script pkg.mod does not exist", "`-m pkg.mod` if it is a module"),
        "train.py/x": ("script train.py/x does not exist", None),
        "empty": ("script empty is a directory without `__main__.py`", None),
        "with_one": ("script with_one is a directory without `__main__.py`", "`with_one/go.py`"),
        "loop.py": ("script loop.py cannot be read: Too many levels of symbolic links", None),
        "fifo.py": ("script fifo.py is not a regular file", None),
        "x" * 300: (f"script {'x' * 300} cannot be read: File name too long", None),
    }
    for name, expected in cases.items():
        with pytest.raises(UsageError) as caught:
            check_script(tmp_path / name, name)
        assert (caught.value.message, caught.value.hint) == expected


@pytest.fixture
def packages(tmp_path):
    """Packages that fail when a line of them is run."""
    for name in (
        "pkg/__init__.py",
        "pkg/train.py",
        "pkg/sub/__init__.py",
        "pkg/sub/__main__.py",
        "space/deep/er/mod.py",
        "alone.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('this was run')")
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").write_text("__path__.append('/somewhere')")
    return [str(tmp_path)]


@pytest.mark.parametrize(
    "name",
    ["alone", "pkg.train", "pkg.sub", "pkg.sub.__main__", "space.deep.er.mod", "own.any", "timeit"],
)
def test_modules_that_are_found_without_running_them(packages, name):
    check_module(name, [*packages, *sys.path])


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        (
            "pkg.trian",
            "module pkg.trian was not found in package pkg",
            "did you mean `-m pkg.train`?",
        ),
        ("pgk.train", "module pgk.train was not found", "did you mean `-m pkg`?"),
        ("alone.py", "module alone.py was not found", "`alone.py` without `-m`"),
        ("alone.x", "module alone.x was not found in package alone", None),
        ("pkg", "module pkg is a package without `__main__`", "did you mean `-m pkg.train`?"),
        ("space.deep", "module space.deep is a package without `__main__`", None),
        ("pkg/train.py", "`pkg/train.py` is no module name", "without `-m` if it is a script"),
        ("pkg..train", "`pkg..train` is no module name", None),
        ("-x", "`-x` is no module name", None),
        ("", "`` is no module name", None),
    ],
)
def test_modules_that_are_not_there(packages, name, message, hint):
    with pytest.raises(UsageError) as caught:
        check_module(name, packages)
    assert message in caught.value.message
    assert (hint or "") in (caught.value.hint or "")


def test_where_a_rank_looks_for_modules():
    ours = ["/venv/bin", "/lib", "/site"]
    assert find_rank_path({}, HERE, ours) == ("/here", "/lib", "/site")
    env = {"PYTHONPATH": "a:/b:/lib"}
    assert find_rank_path(env, HERE, ours) == ("/here", "/here/a", "/b", "/lib", "/site")
    assert find_rank_path({"PYTHONSAFEPATH": "1"}, HERE, ours) == ("/lib", "/site")


def run_in(directory, **launch):
    script = directory / "train.py"
    script.write_text("")
    asked = RunConfig(
        directory,
        directory / ".puffrun",
        None,
        TrainSection(script=script),
        LaunchOptions(**launch),
    )
    return plan(asked, cwd=directory)


def test_a_run_directory(tmp_path):
    made = run_in(tmp_path)
    check_plan(made, [])
    run_dir = create_run_dir(made)
    assert run_dir == RunDir(made.run_dir)
    assert run_dir.path.stat().st_mode & 0o777 == 0o700
    assert json.loads(run_dir.plan_path.read_text()) == plan_as_json(made)
    assert all(d.is_dir() for d in (run_dir.logs_dir, run_dir.errors_dir, run_dir.stacks_dir))
    assert (tmp_path / ".puffrun/last").readlink() == Path("runs", made.run_id)


def test_last_is_the_newest_run_wherever_it_is(tmp_path):
    create_run_dir(run_in(tmp_path))
    there = tmp_path / "deep/there"
    create_run_dir(run_in(tmp_path, run_dir=there))
    assert (tmp_path / ".puffrun/last").readlink() == there
    assert sorted(p.name for p in (tmp_path / ".puffrun").iterdir()) == ["last", "runs"]


def test_an_empty_run_directory_is_taken_and_closed_to_others(tmp_path):
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    run_dir = create_run_dir(run_in(tmp_path, run_dir=there))
    assert run_dir.path.stat().st_mode & 0o777 == 0o700


def test_a_state_directory_that_cannot_be_is_no_reason_to_fail(tmp_path):
    (tmp_path / ".puffrun").write_text("a file")
    run_dir = create_run_dir(run_in(tmp_path, run_dir=tmp_path / "there"))
    assert run_dir.plan_path.is_file()


def test_run_directories_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/report.json").write_text("")
    cases = {
        tmp_path / "full": f"run directory {tmp_path}/full is not empty",
        tmp_path / "file": f"run directory {tmp_path}/file cannot be used: Not a directory",
        tmp_path / "file/x/y": f"run directory {tmp_path}/file/x/y cannot be used: Not a directory",
        Path("/proc/nowhere"): "run directory /proc/nowhere cannot be used: ",
        tmp_path / ("x" * 300): "cannot be used: File name too long",
    }
    for path, message in cases.items():
        made = run_in(tmp_path, run_dir=path)
        with pytest.raises(UsageError) as caught:
            create_run_dir(made)
        assert message in caught.value.message
        assert "--run-dir" in caught.value.hint


def test_a_rank_directory_that_is_not_there(tmp_path):
    made = replace(run_in(tmp_path), cwd=tmp_path / "gone")
    with pytest.raises(UsageError, match="gone is no directory"):
        check_plan(made, [])
