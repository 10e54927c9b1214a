"""What a machine gives: GPUs, cores and Slurm's geometry."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from fake_gpus import build_fake_nvml

from puffrun.cluster import Gpu, Inventory, SlurmStep, detect_allocation, detect_gpus
from puffrun.cluster import find_slurm_step as find_step
from puffrun.cluster.cores import detect_cores, find_quota
from puffrun.cluster.gpus import parse_smi
from puffrun.cluster.nvml import NvmlError
from puffrun.cluster.slurm import parse_tasks_per_node
from puffrun.cluster.visible import find_visible
from puffrun.errors import UsageError
from puffrun.process import run_captured

GPUS = tuple(Gpu(i, f"GPU-{i}000-bbbb", "NVIDIA H100") for i in range(4))
MIG = (
    Gpu(0, "GPU-0000-bbbb", "A"),
    Gpu(1, "MIG-aaaa-0", "A MIG", "GPU-1000-bbbb"),
    Gpu(1, "MIG-aaaa-2", "A MIG", "GPU-1000-bbbb"),
)

VISIBLE = [
    (None, ["0", "1", "2", "3"]),
    ("", []),
    ("-1", []),
    ("2,0", ["2", "0"]),
    (" 1 , 3 ", ["1", "3"]),
    ("0,-1,1", ["0"]),
    ("0,9,1", ["0"]),
    ("none", []),
    ("NoDevFiles", []),
    ("1,x,2", ["1"]),
    ("1gpu,2ampere", ["1gpu", "2ampere"]),
    ("1,1", []),
    ("1,2,1", []),
    ("GPU-2000-bbbb,GPU-1", ["GPU-2000-bbbb", "GPU-1"]),
    ("GPU-", []),
    ("GPU-9,GPU-1", []),
    ("1,GPU-1000-bbbb", ["1"]),
    ("GPU-1000-bbbb,1", ["GPU-1000-bbbb"]),
    ("0,,1", ["0"]),
]


@pytest.mark.parametrize(("variable", "entries"), VISIBLE)
def test_what_cuda_would_show(variable, entries):
    assert [v.entry for v in find_visible(GPUS, variable)] == entries


@pytest.mark.parametrize(
    ("gpus", "variable", "uuids"),
    [
        (MIG, None, ["GPU-0000-bbbb"]),  # the whole ones
        (MIG[1:], None, ["MIG-aaaa-0"]),  # a process gets one instance
        (MIG, "MIG-aaaa-2", ["MIG-aaaa-2"]),
        (MIG, "MIG-aaaa-2,MIG-aaaa-0", ["MIG-aaaa-2"]),
        (MIG, "1", ["MIG-aaaa-0"]),
        (MIG, "GPU-1000-bbbb", ["MIG-aaaa-0"]),
        (MIG, "MIG-aaaa", []),  # not one
    ],
)
def test_mig_instances(gpus, variable, uuids):
    assert [v.gpu.uuid for v in find_visible(gpus, variable)] == uuids


def test_gpus_that_differ_are_named_by_uuid():
    gpus = (GPUS[0], Gpu(1, "GPU-1000-bbbb", "NVIDIA T4"))
    assert [v.entry for v in find_visible(gpus, None)] == ["GPU-0000-bbbb", "GPU-1000-bbbb"]
    assert [v.entry for v in find_visible(gpus, "1")] == ["1"]  # the user's own word stays


def captured(returncode, text=""):
    return lambda _: SimpleNamespace(returncode=returncode, stdout=text.encode())


def refuse(argv):
    raise FileNotFoundError(argv[0])


def fail_nvml():
    raise NvmlError("no libnvidia-ml.so.1")


SMI = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0000-bbbb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1000-bbbb)
  MIG 3g.20gb     Device  0: (UUID: MIG-aaaa-0)
  MIG 1g.5gb      Device  1: (UUID: MIG-aaaa-1)
"""


def test_nvidia_smi_is_read():
    assert parse_smi(SMI) == (
        Gpu(0, "GPU-0000-bbbb", "NVIDIA H100 80GB HBM3"),
        Gpu(1, "MIG-aaaa-0", "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "GPU-1000-bbbb"),
        Gpu(1, "MIG-aaaa-1", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "GPU-1000-bbbb"),
    )


@pytest.mark.parametrize(
    ("run", "inventory"),
    [
        (captured(0, SMI), Inventory(parse_smi(SMI))),
        (captured(9), Inventory(problem="no libnvidia-ml.so.1, and nvidia-smi failed")),
        (captured(None), Inventory(problem="no libnvidia-ml.so.1, and nvidia-smi failed")),
        (refuse, Inventory(problem="no libnvidia-ml.so.1, and no nvidia-smi")),
    ],
)
def test_nvidia_smi_is_asked_when_nvml_is_not_there(run, inventory):
    assert detect_gpus(run, fail_nvml) == inventory


def test_nvidia_smi_is_not_asked_when_nvml_answers():
    def never(argv):
        raise AssertionError(argv)

    assert detect_gpus(never, lambda: GPUS) == Inventory(GPUS)


DETECT = """
import sys
from puffrun.cluster import detect_gpus
from puffrun.cluster.nvml import load_nvml_gpus
from puffrun.process import run_captured
print(detect_gpus(run_captured, load_nvml_gpus, float(sys.argv[1])))
"""


def detect(directory, timeout_s=20.0, **env):
    """Detect GPUs in a process of its own, on a machine with the NVML of `directory`."""
    found = subprocess.run(
        [sys.executable, "-c", DETECT, str(timeout_s)],
        env={"PATH": os.fspath(directory), "LD_LIBRARY_PATH": os.fspath(directory), **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    names = {"Gpu": Gpu, "Inventory": Inventory}
    return eval(found.stdout, names)  # noqa: S307 - the repr that DETECT printed


def test_nvml_for_real(tmp_path):
    build_fake_nvml(tmp_path)
    assert detect(tmp_path, FAKE_GPUS="3") == Inventory(GPUS[:3])
    assert detect(tmp_path) == Inventory()
    assert detect(tmp_path, FAKE_GPUS="2", FAKE_MIG="1") == Inventory(
        (
            GPUS[0],
            Gpu(1, "MIG-aaaa-0", "NVIDIA H100 MIG 1g.10gb", "GPU-1000-bbbb"),
            Gpu(1, "MIG-aaaa-2", "NVIDIA H100 MIG 1g.10gb", "GPU-1000-bbbb"),
        )
    )


def test_nvml_that_fails_or_never_answers(tmp_path):
    build_fake_nvml(tmp_path)
    failed = detect(tmp_path, FAKE_NVML="fail")
    assert failed.problem == "nvmlInit_v2: Driver Not Loaded, and no nvidia-smi"
    wedged = detect(tmp_path, timeout_s=0.1, FAKE_NVML="wedged")
    assert wedged.problem == "NVML did not answer in 0.1 s, and no nvidia-smi"


def test_nvidia_smi_for_real(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{SMI}END\n")
    program.chmod(0o755)
    assert detect(tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin") == Inventory(parse_smi(SMI))


def make_cgroup(directory, files):
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


CGROUPS = [
    ("0::/a/b\n", {"cpu.max": "max 100000\n"}, None),
    ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 100000"}, 1.5),
    ("0::/\n", {"cpu.max": "250000 100000"}, 2.5),
    ("0::/../../x\n", {"cpu.max": "250000 100000", "x/cpu.max": "1 100000"}, 2.5),
    ("0::/gone\n", {}, None),
    (
        "4:cpu,cpuacct:/j\n1:name=systemd:/j\n",
        {"cpu/j/cpu.cfs_quota_us": "300000", "cpu/j/cpu.cfs_period_us": "100000"},
        3.0,
    ),
    ("4:cpu:/j\n", {"cpu/j/cpu.cfs_quota_us": "-1", "cpu/j/cpu.cfs_period_us": "100000"}, None),
]


@pytest.mark.parametrize(("membership", "files", "quota"), CGROUPS)
def test_the_quota_of_a_cgroup(tmp_path, membership, files, quota):
    path = tmp_path / "membership"
    path.write_text(membership)
    assert find_quota(path, make_cgroup(tmp_path / "cgroup", files)) == quota


def test_no_cgroups_at_all(tmp_path):
    assert find_quota(tmp_path / "gone", tmp_path) is None


def test_cores_of_this_machine():
    assert 1 <= detect_cores() <= len(os.sched_getaffinity(0))


STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
SLURM = [
    ({}, SlurmStep()),
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}, SlurmStep()),
    (STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}, SlurmStep()),
    (
        STEP
        | {
            "SLURM_STEP_NUM_NODES": "3",
            "SLURM_STEP_NUM_TASKS": "3",
            "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
            "SLURM_NODEID": "2",
            "SLURM_NTASKS_PER_NODE": "8",  # the job's, not the step's
        },
        SlurmStep(3, 2),
    ),
    ({"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "4"}, SlurmStep()),
]


@pytest.mark.parametrize(("environ", "step"), SLURM)
def test_slurm_steps(environ, step):
    assert find_step(environ) == step


REFUSED = [
    ({"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"}, "batch shell of a job with 2 nodes"),
    (
        STEP
        | {
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_STEP_NUM_TASKS": "4",
            "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        },
        "srun started 4 tasks on 2 nodes (SLURM_STEP_TASKS_PER_NODE=2(x2))",
    ),
    (STEP | {"SLURM_STEP_NUM_TASKS": "x"}, "SLURM_STEP_NUM_TASKS is `x`"),
    (STEP | {"SLURM_STEP_TASKS_PER_NODE": "1;1"}, "SLURM_STEP_TASKS_PER_NODE is `1;1`"),
]


@pytest.mark.parametrize(("environ", "message"), REFUSED)
def test_slurm_geometry_that_cannot_work(environ, message):
    with pytest.raises(UsageError) as caught:
        find_step(environ)
    assert message in caught.value.message


def test_one_node_asked_for_beats_the_batch_shell():
    environ = REFUSED[0][0]
    assert find_step(environ, alone=True) == SlurmStep()
    with pytest.raises(UsageError):  # but one task per rank would start every rank many times
        find_step(REFUSED[1][0], alone=True)


@pytest.mark.parametrize(
    ("text", "counts"), [("", ()), ("2", (2,)), ("2(x3),1", (2, 2, 2, 1)), ("1,1", (1, 1))]
)
def test_tasks_per_node(text, counts):
    assert parse_tasks_per_node(text) == counts


def test_this_machine():
    allocation = detect_allocation({"CUDA_VISIBLE_DEVICES": ""}, run_captured)
    assert allocation.gpus == ()
    assert allocation.visible_variable == ""
    assert (allocation.nodes, allocation.node_rank) == (1, 0)
    assert allocation.cores >= 1
