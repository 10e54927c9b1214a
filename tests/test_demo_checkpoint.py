"""Checkpoints: whole after a kill at any moment, the newest is found, nothing half is loaded."""

import signal
import subprocess
import sys

import torch

from puffrun.demo.checkpoint import find_newest_checkpoint, load_checkpoint, save_checkpoint

SAVER = """
import sys, warnings
warnings.filterwarnings("ignore")
from pathlib import Path
import torch
from puffrun.demo.checkpoint import save_checkpoint
print("ready", flush=True)
for update in range(1, 1_000_000):
    state = {"weights": torch.full((500_000,), float(update)), "update": update}
    print(save_checkpoint(state, Path(sys.argv[1]), update % 10), flush=True)
"""


def test_the_newest_is_found_and_comes_back(tmp_path):
    assert find_newest_checkpoint(tmp_path / "none") is None
    for update in (9, 120, 20):
        save_checkpoint({"update": update, "x": torch.arange(3)}, tmp_path / "kept", update)
    newest = find_newest_checkpoint(tmp_path / "kept")
    assert newest is not None
    assert newest.name == "update-00120.pt"
    state = load_checkpoint(newest)
    assert state["update"] == 120
    assert state["x"].tolist() == [0, 1, 2]


def test_what_a_killed_save_left_is_not_a_checkpoint(tmp_path):
    (tmp_path / ".update-00099.pt.tmp").write_bytes(b"half")
    assert find_newest_checkpoint(tmp_path) is None
    save_checkpoint({"update": 99}, tmp_path, 99)
    assert [path.name for path in tmp_path.iterdir()] == ["update-00099.pt"]


def test_a_kill_at_any_moment_leaves_whole_checkpoints(tmp_path):
    command = [sys.executable, "-c", SAVER, str(tmp_path)]
    for saved in (3, 4, 5):  # the moment falls somewhere into the save after these
        popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert popen.stdout is not None
            for _ in range(1 + saved):
                assert popen.stdout.readline()
        finally:
            popen.send_signal(signal.SIGKILL)
            popen.communicate(timeout=30)
        newest = find_newest_checkpoint(tmp_path)
        assert newest is not None
        for path in tmp_path.glob("update-*.pt"):
            state = load_checkpoint(path)
            assert (state["weights"] == state["update"]).all()
