"""The second artifact: its network is torch's, its world is the library's, its picture is a GIF."""

import hashlib
from pathlib import Path

import pytest
import torch
from demo_gif import read_gif
from demo_parts import Parts, build_parts, run_visualize

from puffrun.demo.env import ACTIONS, OBSERVATIONS, DriveEnvs
from puffrun.demo.policy import Policy, export_policy

SEED = 11


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """With sanitizers: memory errors and undefined behaviour end `visualize` with a code."""
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")
    return build_parts(tmp_path_factory.mktemp("demo"), *flags)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_parts(tmp_path_factory.mktemp("library")).library


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(2)
    policy = Policy(OBSERVATIONS, ACTIONS)
    for layer in (policy.first, policy.second, policy.actor):  # as uneven as a trained one
        torch.nn.init.normal_(layer.weight, std=0.5)
        torch.nn.init.normal_(layer.bias, std=0.5)
    return policy


@pytest.fixture(scope="module")
def weights(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "drive.bin"
    export_policy(policy, path)
    return path


def read_trace(parts: Parts, weights: Path, episodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    done = run_visualize(parts, weights, "--trace", SEED, episodes)
    assert (done.returncode, done.stderr) == (0, "")
    rows = torch.tensor([[float(x) for x in line.split()] for line in done.stdout.splitlines()])
    return rows[:, :OBSERVATIONS], rows[:, OBSERVATIONS:]


def test_the_network_in_c_agrees_with_torch(parts, policy, weights):
    observations, logits = read_trace(parts, weights, 8)
    assert len(observations) > 50
    with torch.no_grad():
        expected, _ = policy(observations)
    assert (logits - expected).abs().max() < 1e-4
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def test_the_world_is_the_one_that_was_trained_in(parts, library, weights):
    observations, logits = read_trace(parts, weights, 1)
    envs = DriveEnvs(library, 1, SEED)
    for row, chosen in zip(observations, logits.argmax(-1), strict=True):
        assert (row - envs.observations[0]).abs().max() < 1e-4
        _, ending = envs.step(chosen.unsqueeze(0))
    envs.close()
    assert int(ending) != 0


def test_the_picture_is_a_whole_film(parts, weights, tmp_path):
    path = tmp_path / "drive.gif"
    done = run_visualize(parts, weights, path, SEED, 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert [found.name for found in tmp_path.iterdir()] == ["drive.gif"]
    picture = read_gif(path.read_bytes())
    assert (picture.width, picture.height) == (720, 480)
    assert picture.delays.count(130) == 2, "each of the two roads ends with a banner"
    frames = [hashlib.sha256(frame).hexdigest() for frame in picture.frames]
    assert len(frames) == len(picture.delays)
    assert len(set(frames)) == len(frames), "something moves in every frame"
    assert set(picture.rgb(0)) > {246, 232, 72, 62}, "white lines and a red car are there"


def test_a_film_is_the_same_for_a_seed(parts, weights, tmp_path):
    pictures = []
    for i, seed in enumerate((SEED, SEED, SEED + 1)):
        run_visualize(parts, weights, tmp_path / f"{i}.gif", seed, 1)
        pictures.append((tmp_path / f"{i}.gif").read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


def test_weights_that_are_no_policy_are_refused(parts, weights, tmp_path):
    whole = weights.read_bytes()
    mistakes = {"empty": b"", "short": whole[:-1], "long": whole + b"x", "text": b"x" * 999}
    mistakes["huge"] = whole[:12] + b"\xff" * 8 + whole[20:]
    mistakes["shape"] = whole[:12] + (65).to_bytes(4, "little") + whole[16:]
    for name, content in mistakes.items():
        path = tmp_path / name
        path.write_bytes(content)
        done = run_visualize(parts, path, tmp_path / "drive.gif")
        assert (done.returncode, done.stdout) == (1, ""), name
        assert done.stderr == f"visualize: {path} is not a policy for this world\n"
    assert not (tmp_path / "drive.gif").exists()


def test_a_picture_that_cannot_be_written_is_an_error(parts, weights, tmp_path):
    done = run_visualize(parts, weights, tmp_path / "nowhere" / "drive.gif")
    assert done.returncode == 1
    assert "nowhere" in done.stderr


def test_a_wrong_command_line_shows_the_right_one(parts):
    done = run_visualize(parts)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: visualize WEIGHTS")
