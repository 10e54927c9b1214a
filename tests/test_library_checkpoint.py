"""Checkpoints: whole or not there, whoever is killed whenever."""

import json
import os
import pickle
import random
import threading

import pytest
from ranks import join_gloo, ranks, run_ranks, torch
from test_library_agree import the_error

from puffrun import DisagreementError, checkpoint, latest_checkpoint
from puffrun.library.checkpoint_manifest import MANIFEST, find_damage
from puffrun.rundir import RunDir

KILLS = int(os.environ.get("PUFFRUN_TEST_KILLS", "12"))
SEED = int(os.environ.get("PUFFRUN_TEST_SEED", str(random.randrange(2**32))))  # noqa: S311  # moments


def write(path, rank, step):
    (path / f"rank-{rank}.bin").write_bytes(bytes([step % 256]) * 200_000)


def read_steps(path):
    """The step that each file of a checkpoint was written at."""
    return {file.name: file.read_bytes()[0] for file in path.glob("*.bin")}


def save_steps(rank, mail, directory, steps):
    for step in steps:
        with checkpoint(directory, step) as path:
            write(path, rank, step)
    return latest_checkpoint(directory, verify=True)


def test_a_checkpoint_holds_every_rank(tmp_path):
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    base = tmp_path / "ckpt"
    env = {"PUFFRUN_RUN_DIR": str(run_dir.path)}
    answers = run_ranks(3, save_steps, str(base), (1, 20, 3), **env)
    newest = base / "step-00000020"
    assert [answer.value for answer in answers] == [newest] * 3, answers
    assert read_steps(newest) == {f"rank-{rank}.bin": 20 for rank in range(3)}
    assert sorted(p.name for p in base.iterdir()) == [f"step-{n:08d}" for n in (1, 3, 20)]
    files = json.loads((newest / MANIFEST).read_text())["files"]
    assert {name: entry["size"] for name, entry in files.items()} == dict.fromkeys(
        (f"rank-{rank}.bin" for rank in range(3)), 200_000
    )
    assert json.loads(run_dir.checkpoint_path.read_text())["step"] == 3


def test_the_same_step_again_replaces_it_whole(tmp_path):
    run_ranks(2, save_steps, str(tmp_path), (7,))
    run_ranks(2, save_steps, str(tmp_path), (7,))
    run_ranks(2, save_steps, str(tmp_path), (7,))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000007.3"]


def fail_to_save(rank, mail, directory):
    with checkpoint(directory, 1) as path:
        write(path, rank, 1)
    with checkpoint(directory, 2) as path:
        write(path, rank, 2)
        if rank == 1:
            raise OSError("no space left")


def test_a_failure_on_one_rank_leaves_the_previous_one(tmp_path):
    text = the_error(run_ranks(3, fail_to_save, str(tmp_path)))
    assert "checkpoint `2`, writing: rank 1 failed: OSError: no space left" in text
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    assert latest_checkpoint(tmp_path, verify=True) == tmp_path / "step-00000001"


def save_in_a_file(rank, mail, directory):
    with checkpoint(directory, 1):
        pass


def test_a_directory_that_cannot_be_is_an_error_everywhere(tmp_path):
    (tmp_path / "file").touch()
    assert "rank 0 failed: NotADirectoryError" in the_error(
        run_ranks(2, save_in_a_file, str(tmp_path / "file"))
    )
    with pytest.raises(NotADirectoryError, match="is not a directory: checkpoints need one"):
        latest_checkpoint(tmp_path / "file")


def save_one(directory, step):
    with checkpoint(directory, step) as path:
        write(path, 0, step)


def list_tree(directory):
    return {str(p.relative_to(directory)): p.lstat().st_mode for p in directory.rglob("*")}


def put_others_things(base):
    """What looks like a checkpoint or a draft, and is none of ours."""
    for name in ("step-100", "step-7", "step-000000007", "step-00000007", "step-00000007.5"):
        (base / name).mkdir()
        (base / name / "precious").touch()
    (base / "step-00000007.5" / MANIFEST).write_text('{"schema": 1, "title": "not ours"}')
    (base / "step-00000008").touch()
    (base / "elsewhere").mkdir()
    save_one(base / "elsewhere", 9)
    (base / "step-00000009").symlink_to(base / "elsewhere" / "step-00000009")
    (base / ".step-00000001.abc.tmp").touch()
    (base / ".step-00000002.deadbeef.tmp").touch()
    (base / ".step-00000003.deadbeef.tmp").symlink_to(base / "elsewhere")
    (base / ".step-00000004.mine.tmp").mkdir()


def test_what_puffrun_did_not_write_is_left_alone(tmp_path):
    put_others_things(tmp_path)
    before = list_tree(tmp_path)
    for step in (100, 7, 8, 9, 7):
        save_one(tmp_path, step)
    after = list_tree(tmp_path)
    assert {name: after.get(name) for name in before} == before
    made = {name for name in after.keys() - before.keys() if "/" not in name}
    assert made == {"step-00000100", "step-00000007.7", "step-00000008.2", "step-00000009.2"}
    assert latest_checkpoint(tmp_path, verify=True) == tmp_path / "step-00000100"


@pytest.mark.parametrize("step", [-1, 2.0, "5", None])
def test_a_step_that_is_none_is_refused_before_anything_is_made(tmp_path, step):
    with pytest.raises((TypeError, ValueError), match="step has to be"):
        save_one(tmp_path / "new", step)
    assert list(tmp_path.iterdir()) == []


def save_odd_step(rank, mail, directory):
    with checkpoint(directory, 3 if rank == 0 else 2.5):
        raise AssertionError("no rank gets here")


def test_a_bad_step_on_one_rank_is_told_to_all(tmp_path):
    text = the_error(run_ranks(2, save_odd_step, str(tmp_path)))
    assert "rank 1 failed: TypeError: step has to be a whole number, not 2.5" in text
    assert list(tmp_path.iterdir()) == []


def test_a_manifest_of_the_programs_own(tmp_path):
    own = pytest.raises(FileExistsError, match=r"manifest\.json is puffrun's own file")
    with own, checkpoint(tmp_path, 1) as path:
        (path / MANIFEST).write_text("{}")
    assert list(tmp_path.iterdir()) == []
    with checkpoint(tmp_path, 1) as path:
        (path / "hf" / "deep").mkdir(parents=True)
        (path / "hf" / MANIFEST).write_text("{}")
        (path / "hf" / "deep" / "a").touch()
    newest = tmp_path / "step-00000001"
    listed = json.loads((newest / MANIFEST).read_text())["files"]
    assert listed.keys() == {f"hf/{MANIFEST}", "hf/deep/a"}
    (newest / "hf" / MANIFEST).unlink()
    assert find_damage(newest, verify=False) == f"hf/{MANIFEST} is not there"


def save_by_dcp(rank, mail, directory):
    import torch.distributed.checkpoint as dcp
    from torch.distributed import distributed_c10d
    from torch.distributed.tensor import DeviceMesh, DTensor, Shard

    # DCP's object collectives go through numpy, which is not a dependency of puffrun
    distributed_c10d._tensor_to_object = (
        lambda tensor, size, _group: pickle.loads(  # noqa: S301  # as torch does
            bytes(tensor[:size].tolist())
        )
    )
    join_gloo()
    mesh = DeviceMesh("cpu", [0, 1])
    state = {"w": DTensor.from_local(torch.full((2, 3), float(rank)), mesh, [Shard(0)])}
    with checkpoint(directory, 5) as path:
        dcp.save(state, checkpoint_id=path)
    state = {"w": DTensor.from_local(torch.zeros(2, 3), mesh, [Shard(0)])}
    dcp.load(state, checkpoint_id=latest_checkpoint(directory, verify=True))
    return state["w"].to_local()[0, 0].item()


@pytest.mark.filterwarnings("ignore")
def test_torch_distributed_checkpoint_writes_into_it(tmp_path):
    answers = run_ranks(2, save_by_dcp, str(tmp_path))
    assert [answer.value for answer in answers] == [0.0, 1.0], answers


def damage_truncate(path):
    os.truncate(path / "rank-0.bin", 10)


def damage_remove(path):
    (path / "rank-0.bin").unlink()


def damage_manifest(path):
    os.truncate(path / MANIFEST, 20)


def damage_no_manifest(path):
    (path / MANIFEST).unlink()


def damage_flip(path):
    data = bytearray((path / "rank-0.bin").read_bytes())
    data[100] ^= 1
    (path / "rank-0.bin").write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [damage_truncate, damage_remove, damage_manifest, damage_no_manifest, damage_flip],
)
def test_a_damaged_checkpoint_is_passed_over(tmp_path, damage):
    for step in (1, 2):
        with checkpoint(tmp_path, step) as path:
            write(path, 0, step)
    newest = latest_checkpoint(tmp_path)
    assert newest == tmp_path / "step-00000002"
    damage(newest)
    assert find_damage(newest, verify=True)
    assert latest_checkpoint(tmp_path, verify=True) == tmp_path / "step-00000001"


@pytest.mark.parametrize(
    "text",
    [
        "[]", "null", '"x"', "3", "{}", '{"schema": 1}', '{"schema": [1], "files": {}}',
        '{"schema": 1, "files": []}', '{"schema": 1, "files": {"a": 3}}',
        '{"schema": 1, "files": {"a": {"blake2b": "x"}}}',
        '{"schema": 1, "files": {"a": {"size": "x", "blake2b": "x"}}}',
        '{"schema": 1, "files": {"a": {"size": 1}}}',
        '{"schema": 1, "files": {"%s": {"size": 1, "blake2b": "x"}}}' % ("n" * 5000),
        '{"schema": 1, "files": {"a\\u0000": {"size": 1, "blake2b": "x"}}}',
        '{"schema": 1, "files": {"\\ud800": {"size": 1, "blake2b": "x"}}}',
        "[" * 100_000, '{"schema": %s}' % ("9" * 10_000), "\ufeff{}",
    ],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_any_other_manifest_is_damage(tmp_path, text):
    for step in (1, 2):
        save_one(tmp_path, step)
    newest = tmp_path / "step-00000002"
    (newest / MANIFEST).write_text(text)
    for verify in (False, True):
        assert find_damage(newest, verify=verify)
        assert latest_checkpoint(tmp_path, verify=verify) == tmp_path / "step-00000001"


def test_there_may_be_none(tmp_path):
    assert latest_checkpoint(tmp_path / "absent") is None
    (tmp_path / ".step-00000001.abcd.tmp").mkdir()
    (tmp_path / "step-00000002").mkdir()
    assert latest_checkpoint(tmp_path) is None


def test_an_error_in_a_single_process_is_the_programs_own(tmp_path):
    with pytest.raises(ValueError, match="plain"), checkpoint(tmp_path, 1):
        raise ValueError("plain")
    assert list(tmp_path.iterdir()) == []


def save_for_ever(rank, mail, directory, first):
    mail.send("saving")
    step = first
    while True:
        try:
            with checkpoint(directory, step, timeout_s=30) as path:
                write(path, rank, step)
        except DisagreementError as error:
            return str(error).splitlines()[0]
        step += 1


def test_killing_a_rank_at_any_moment_of_a_save_leaves_a_whole_checkpoint(tmp_path):
    """PUFFRUN_TEST_KILLS=100 kills more often; PUFFRUN_TEST_SEED repeats the moments."""
    chance = random.Random(SEED)  # noqa: S311  # moments
    newest_step, found = 0, 0
    for trial in range(KILLS):
        with ranks(2, save_for_ever, str(tmp_path), newest_step + 1) as run:
            assert [run.receive(rank) for rank in range(2)] == ["saving"] * 2
            threading.Event().wait(chance.random() * 0.15)
            victim = chance.randrange(2)
            run.kill(victim)
            run.announce(victim)
            survivor = run.receive(1 - victim)
            assert f"rank {victim} is gone (killed by SIGKILL)" in survivor.value, survivor
        newest = latest_checkpoint(tmp_path, verify=True)
        if newest is None:
            assert newest_step == 0, f"seed {SEED}, trial {trial}"
            continue
        step = json.loads((newest / MANIFEST).read_text())["step"]
        assert read_steps(newest) == {f"rank-{rank}.bin": step % 256 for rank in range(2)}
        assert step >= newest_step, f"seed {SEED}, trial {trial}: an older one"
        found += step > newest_step
        newest_step = step
    assert newest_step > 0
    save_again = run_ranks(2, save_steps, str(tmp_path), (newest_step + 1,))
    assert save_again[0].value == tmp_path / f"step-{newest_step + 1:08d}"
    assert list(tmp_path.glob(".step-*")) == [], "what the killed ranks left is removed"
    print(f"seed {SEED}: {KILLS} kills, {newest_step} checkpoints, {found} moved on")
