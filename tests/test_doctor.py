"""doctor's checks: a planted fact is named by its check, and nothing else is."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from puffrun.cluster import Allocation, Gpu, Inventory, VisibleGpu
from puffrun.config import LaunchOptions, RunConfig, TrainSection
from puffrun.console.doctor_lines import render_doctor
from puffrun.console.paint import Paint
from puffrun.doctor import Facts, examine
from puffrun.doctor.detect_project import detect_project, find_foreign_extensions, find_workers
from puffrun.doctor.detect_software import parse_driver_cuda, parse_gpus, parse_holders
from puffrun.doctor.detect_system import detect_container, measure_space
from puffrun.doctor.hardware import fits_versions
from puffrun.doctor.machine_facts import (
    ArtifactFact,
    ForeignExtension,
    GpuFact,
    Gpus,
    Holder,
    Limits,
    Locks,
    Network,
    Orphan,
    Project,
    Software,
    Space,
    Tracing,
)
from puffrun.doctor.orphans import Parent, is_adopter, is_rank

MIB, GIB = 1 << 20, 1 << 30
CLEAN = Facts()
BOXED = Facts(in_container=True)
H100 = GpuFact(0, "GPU-a", "NVIDIA H100", "9.0")
WITH_GPU = Facts(
    software=Software(
        cuda="12.6", nccl="2.27.3", installed_nccl="2.27.3", arches=("sm_80", "sm_90")
    ),
    gpus=Gpus(all=(H100,), visible=("GPU-a",), driver="570.1", driver_cuda="12.8"),
)
SHM = "/dev/shm"


def gpu(**more):
    return replace(WITH_GPU, gpus=replace(WITH_GPU.gpus, **more))


def torch(base=WITH_GPU, **more):
    return replace(base, software=replace(base.software, **more))


def stale(**more):
    return ArtifactFact("c", fresh=False, **more)


# facts, the check, what it says, and what there is to type
PLANTED = [
    (torch(CLEAN, torch=None), "torch", "not installed", "pip install torch"),
    (torch(CLEAN, torch="2.5.1"), "torch", "puffrun wants >=2.13,<3",
     "pip install 'torch>=2.13,<3'"),
    (torch(CLEAN, torch_error="ImportError: libc10.so"), "torch", "libc10.so", "force-reinstall"),
    (torch(CLEAN, gloo=False), "torch", "no gloo", "force-reinstall"),
    (replace(CLEAN, gpus=Gpus(device_files=8, problem="nvmlInit_v2: Driver/library mismatch")),
     "gpus", "8 GPU device files, and no GPU answers", "nvidia-smi"),
    (gpu(variable="0,7", visible=("GPU-a",)), "gpus", "names 2 GPUs, CUDA shows 1", "unset CUDA"),
    (gpu(all=(replace(H100, uncorrected_errors=3),)), "gpus", "3 uncorrected memory errors", "ECC"),
    (gpu(all=(replace(H100, compute_mode="Prohibited"),)), "gpus", "Prohibited", "-c DEFAULT"),
    (torch(cuda=None), "cuda", "has no CUDA, and 1 GPUs are here", "pip install torch"),
    (gpu(driver="470.1", driver_cuda="11.4"), "cuda", "driver 470.1 offers 11.4", "pip install"),
    (torch(nccl="2.18.1"), "cuda", "loads NCCL 2.18.1, the package beside it is 2.27.3", "unset"),
    (torch(arches=("sm_80", "sm_86")), "cuda", "is sm_90, torch has sm_80, sm_86", "upgrade"),
    (torch(cuda_error="RuntimeError: no driver"), "cuda", "no driver", "torch.zeros(1).cuda()"),
    (gpu(holders=(Holder("GPU-a", 4123, "python", 71000),)), "gpu holders",
     "held by python (pid 4123, 71000 MiB)", "kill 4123"),
    (replace(CLEAN, shm=Space("s", SHM, 64 * MIB, 64 * MIB)), "shared memory", "64 MiB of 64 MiB",
     "sudo mount -o remount"),
    (replace(BOXED, shm=Space("s", SHM, 64 * MIB, 64 * MIB)), "shared memory", "64 MiB of 64 MiB",
     "--shm-size"),
    (replace(CLEAN, shm=Space("s", SHM, GIB, 9 * MIB, biggest=(("torch_1", GIB),))),
     "shared memory", "the biggest: torch_1 1.0 GiB", "ls -lS"),
    (replace(CLEAN, limits=Limits(open_files=64, open_files_hard=4096)), "open files",
     "may open 64 files", "ulimit -n 4096"),
    (replace(CLEAN, limits=Limits(open_files=64, open_files_hard=64)), "open files",
     "may open 64 files", "sudo prlimit"),
    (replace(BOXED, limits=Limits(open_files=64, open_files_hard=64)), "open files",
     "may open 64 files", "--ulimit nofile"),
    (replace(CLEAN, limits=Limits(processes=1000, processes_used=990)), "processes",
     "10 more processes", "ulimit -u"),
    (replace(CLEAN, limits=Limits(pids=100, pids_used=90)), "processes", "pids.max is 100",
     "TasksMax"),
    (replace(BOXED, limits=Limits(pids=100, pids_used=90)), "processes", "pids.max is 100",
     "--pids-limit"),
    (replace(CLEAN, network=Network("n7", (), error="Name or service not known")), "host name",
     "`n7` does not resolve", "/etc/hosts"),
    (replace(CLEAN, network=Network("n7", ("10.9.9.9",), ("10.9.9.9",))), "host name",
     "no address of this machine", "/etc/hosts"),
    (replace(CLEAN, network=Network(took_s=5.0)), "host name", "took 5.0 s", "/etc/hosts"),
    (replace(CLEAN, network=Network(loopback_error="Connection refused")), "host name",
     "127.0.0.1 does not answer", "ip link set lo up"),
    (replace(CLEAN, launcher_variables=(("PET_NNODES", "2"), ("RANK", "0"))), "environment",
     "PET_NNODES=2 RANK=0", "unset PET_NNODES RANK"),
    (replace(CLEAN, collective_variables=(("NCCL_SOCKET_IFNAME", "ib0"),)), "environment",
     "this machine has lo", "unset NCCL_SOCKET_IFNAME"),
    (replace(CLEAN, orphans=(Orphan(77, "3", "job9", "python train.py", "pid 1, init"),)),
     "orphans", "pid 77 is rank 3 of run job9", "kill 77"),
    (replace(CLEAN, spaces=(Space("runs", "/data", problem="it is not writable for this user"),)),
     "disk", "/data cannot be used", "chown"),
    (replace(CLEAN, spaces=(Space("runs", "/data", free=5 * MIB),)), "disk", "5 MiB of", "du -xh"),
    (replace(CLEAN, spaces=(Space("runs", "/data", inodes_free=3),)), "disk", "3 inodes", "df -i"),
    (replace(CLEAN, locks=Locks("/nfs", excludes=False)), "locks", "/nfs keep nobody out",
     "local_lock"),
    (replace(CLEAN, project=Project(ranks=2, workers=8, cores=4)), "cores",
     "2 ranks x 8 workers on 4 cores", "--cpus 1"),
    (replace(CLEAN, project=Project(memory=GIB // 2)), "cores", "512 MiB of memory are free",
     "free -h"),
    (replace(CLEAN, project=Project(geometry_problem="srun started 4 tasks on 2 nodes")), "cores",
     "4 tasks", "srun --ntasks-per-node=1"),
    (replace(CLEAN, project=Project(artifacts=(stale(missing_tools=("nvcc",)),))),
     "artifacts", "`c` needs nvcc", "command -v nvcc"),
    (replace(CLEAN, project=Project(artifacts=(
        stale(abi_reasons=("torch changed: 2.12 → 2.13",)),))), "artifacts",
     "built for another environment: torch changed", "puffrun build-artifacts c"),
    (replace(CLEAN, project=Project(artifacts=(stale(abi_reasons=("torch changed",)),),
                                    build_command="puffrun build-artifacts -c x.toml")),
     "artifacts", "built for another environment", "puffrun build-artifacts -c x.toml c"),
    (replace(CLEAN, project=Project(artifacts_problem="input `a.c` does not exist")), "artifacts",
     "`a.c` does not exist", "--explain"),
    (replace(CLEAN, project=Project(extensions=(ForeignExtension("_C.cpython-310-x.so", ".so"),))),
     "extensions", "_C.cpython-310-x.so is for another Python", "rm _C.cpython-310-x.so"),
]  # fmt: skip

NOTED = [
    (replace(CLEAN, collective_variables=(("NCCL_P2P_DISABLE", "1"),)), "environment", "is set"),
    (replace(CLEAN, tracing=Tracing(py_spy=None)), "stacks", "py-spy is not installed"),
    (replace(CLEAN, tracing=Tracing(ptrace_scope=1, may_ptrace=False)), "stacks", "ptrace_scope=1"),
    (replace(CLEAN, project=Project(ranks=8, cores=2)), "cores", "8 ranks on 2 cores"),
    (replace(CLEAN, project=Project(threads=8)), "cores", "OMP_NUM_THREADS=8 x 2 ranks on 2 cores"),
    (replace(CLEAN, project=Project(artifacts=(stale(reasons=("a.c changed",)),))),
     "artifacts", "stale: a.c changed"),
]  # fmt: skip


def findings(facts):
    return {row.name: row.findings for row in examine(facts) if row.findings}


@pytest.mark.parametrize("case", PLANTED, ids=lambda case: f"{case[1]}: {case[2]}")
def test_a_planted_problem_is_named_and_nothing_else(case):
    facts, name, found, fix = case
    said = findings(facts)
    assert list(said) == [name]
    (finding,) = said[name]
    assert finding.level == "problem"
    assert found in finding.found
    assert fix in finding.fix
    assert finding.why


@pytest.mark.parametrize("case", NOTED, ids=lambda case: f"{case[1]}: {case[2]}")
def test_what_is_only_worth_knowing_is_a_note(case):
    facts, name, found = case
    (finding,) = findings(facts)[name]
    assert finding.level == "note"
    assert found in finding.found


@pytest.mark.parametrize("facts", [CLEAN, WITH_GPU], ids=["CPU", "GPU"])
def test_a_clean_machine_has_nothing(facts):
    assert findings(facts) == {}
    lines = render_doctor(examine(facts), 80, paint=Paint(color=False))
    assert lines[-1] == "16 checks, nothing found"
    assert all(line.startswith("ok") for line in lines[:-2])


PET = "torchrun takes PET_* as its own options"
RANK = "a program that reads them believes that it is a rank of another run"


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ("PET_NNODES", f"{PET}; puffrun drops it"),
        ("MASTER_ADDR RANK", f"{RANK}; puffrun drops all of them"),
        ("PET_NNODES RANK", f"{PET}, and {RANK}; puffrun drops all of them"),
    ],
)
def test_leftover_variables_are_explained_by_what_they_are(names, why):
    facts = replace(CLEAN, launcher_variables=tuple((name, "3") for name in names.split()))
    (finding,) = findings(facts)["environment"]
    assert finding.why == why


def test_a_run_without_a_name_is_not_named():
    orphan = Orphan(77, "3", "none", "python train.py", "pid 1, init")
    (finding,) = findings(replace(CLEAN, orphans=(orphan,)))["orphans"]
    assert finding.found.startswith("pid 77 is rank 3 without a launcher (adopted by pid 1, init)")


@pytest.mark.parametrize("is_boxed", [False, True])
def test_docker_is_advised_in_a_container_only(is_boxed):
    limits = Limits(open_files=64, open_files_hard=64, pids=100, pids_used=90)
    facts = replace(
        CLEAN,
        limits=limits,
        shm=Space("s", SHM, MIB, MIB),
        tracing=Tracing(ptrace_scope=1, may_ptrace=False),
        in_container=is_boxed,
    )
    fixes = [finding.fix for found in findings(facts).values() for finding in found]
    assert ["docker run" in fix for fix in fixes] == [is_boxed] * 4


def test_a_container_is_known_by_what_its_engine_leaves(tmp_path):
    assert not detect_container({}, tmp_path)
    assert detect_container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
    assert detect_container({"container": "lxc"}, tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert detect_container({}, tmp_path)


def test_what_is_shown():
    facts = replace(CLEAN, launcher_variables=(("PET_NNODES", "2"),), tracing=Tracing(None))
    text = "\n".join(render_doctor(examine(facts), 80, paint=Paint(color=False)))
    assert "problem  environment    left over from another launcher: PET_NNODES=2" in text
    assert "type unset PET_NNODES" in text
    assert text.endswith("16 checks, 1 problem, 1 note")


@pytest.mark.parametrize(
    ("version", "fits"), [("2.13.0+cpu", True), ("2.14", True), ("2.12.9", False), ("3.0", False)]
)
def test_version_bounds(version, fits):
    assert fits_versions(version, ">=2.13,<3") is fits


SMI = """0, GPU-a, NVIDIA H100 80GB HBM3, 570.86.15, 9.0, 0, Default
1, GPU-b, NVIDIA H100 80GB HBM3, 570.86.15, 9.0, 2, Default
2, GPU-c, Tesla T4, 570.86.15, 7.5, [N/A], Exclusive_Process
"""


def test_nvidia_smi_is_read():
    first, second, third = parse_gpus(SMI)
    assert (first.index, first.uuid, first.capability) == (0, "GPU-a", "9.0")
    assert (second.uncorrected_errors, third.uncorrected_errors) == (2, 0)
    assert parse_gpus("No devices were found\n") == ()
    holders = parse_holders("GPU-a, 4123, /usr/bin/python3, 71000\nGPU-b, 5, x, [N/A]\n")
    assert [(h.pid, h.name, h.memory) for h in holders] == [(4123, "python3", 71000), (5, "x", 0)]
    assert parse_driver_cuda("| Driver Version: 570.86.15    CUDA Version: 12.8  |") == "12.8"


@pytest.mark.parametrize(
    ("parent", "adopts"),
    [
        (Parent(1, "systemd", ("/sbin/init",)), True),
        (
            Parent(1, "python", ("torchrun", "train.py")),
            True,
        ),  # the launcher of a container is gone
        (Parent(50, "systemd", ("/lib/systemd/systemd", "--user")), True),
        (Parent(50, "python", ("python", "-m", "pytest")), True),
        (Parent(50, "python", ("python", "launch_mine.py"), has_torch=True), False),
        (Parent(50, "python", ("python", "train.py"), is_rank=True), False),
        (Parent(50, "python", ("python", "/usr/bin/torchrun", "train.py")), False),
        (Parent(50, "python", ("python", "-m", "torch.distributed.run", "t.py")), False),
        (Parent(50, "python", ("python", "-P", "-m", "puffrun.agent", "5")), False),
        (Parent(50, "python", ("python", "-I", "-S", "/x/puffrun/process/guardian.py")), False),
    ],
)
def test_who_can_only_have_adopted_a_rank(parent, adopts):
    assert is_adopter(parent) is adopts


def test_a_rank_is_known_by_what_torchrun_gives_it():
    assert is_rank({"RANK": "0", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x", "PATH": ""})
    assert not is_rank({"RANK": "0", "LOCAL_RANK": "0"})


@pytest.mark.parametrize(
    ("args", "workers"),
    [
        (("train", "--vec.num-workers", "8"), 8),
        (("--num_workers=3",), 3),
        (("--workers", "many"), 0),
        (("--train.num-workers",), 0),
        (("--lr", "8"), 0),
    ],
)
def test_workers_of_the_programs_arguments(args, workers):
    assert find_workers(args) == workers


def test_extensions_of_other_pythons_are_found(tmp_path):
    own = find_own_suffix()
    for path in (
        "a.cpython-310-x86_64-linux-gnu.so",  # alone: found
        "b.cpython-310-x86_64-linux-gnu.so",  # with a sibling for us: fine
        f"b{own}",
        "pkg/c.cpython-39-x86_64-linux-gnu.so",  # found
        "d.abi3.so",
        "libthing.so",
        ".venv/e.cpython-310-x86_64-linux-gnu.so",
        "venv/f.cpython-310-x86_64-linux-gnu.so",
        "other/pyvenv.cfg",
        "other/g.cpython-310-x86_64-linux-gnu.so",
    ):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    assert {found.path for found in find_foreign_extensions(tmp_path)} == {
        "a.cpython-310-x86_64-linux-gnu.so",
        "pkg/c.cpython-39-x86_64-linux-gnu.so",
    }


def find_own_suffix() -> str:
    from importlib.machinery import EXTENSION_SUFFIXES

    return EXTENSION_SUFFIXES[0]


def test_a_project_on_gpus_has_a_rank_each(tmp_path):
    gpus = tuple(Gpu(i, f"GPU-{i}", "NVIDIA H100") for i in range(3))
    visible = tuple(VisibleGpu(str(g.index), g) for g in gpus)
    allocation = Allocation(8, Inventory(gpus), visible)
    config = RunConfig(
        tmp_path,
        tmp_path / ".puffrun",
        train=TrainSection(args=("--vec.num-workers", "2")),
        launch=LaunchOptions(gpus="all"),
    )
    project = detect_project(config, {"OMP_NUM_THREADS": "4"}, allocation, None)
    assert (project.ranks, project.workers, project.cores, project.threads) == (3, 2, 8, 4)


def test_space_is_that_of_the_nearest_directory_there_is(tmp_path):
    space = measure_space("runs", tmp_path / "a/b/c")
    assert (space.path, space.problem) == (str(tmp_path), None)
    (tmp_path / "file").touch()
    assert measure_space("runs", tmp_path / "file/x").problem == "it is no directory"
    assert space.free <= os.statvfs(tmp_path).f_frsize * os.statvfs(tmp_path).f_blocks
    assert Path(space.path).is_dir()
