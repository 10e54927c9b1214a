"""The driving world: the same for a seed, whole episodes, sane numbers, refused mistakes."""

import pytest
import torch
from demo_parts import Parts, build_parts

from puffrun.demo.env import ACTIONS, ENDINGS, OBSERVATIONS, DriveEnvs, load_library

COAST_AHEAD = 7  # the middle steering angle, the middle throttle
BRAKE, ACCELERATE = 2, 12


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    return build_parts(tmp_path_factory.mktemp("demo"))


def drive(parts: Parts, seed: int, steps: int, count: int = 64) -> dict[str, torch.Tensor]:
    """Drive at random, the same random for all; keep everything that was returned."""
    envs = DriveEnvs(parts.library, count, seed)
    dice = torch.Generator().manual_seed(5)
    seen: dict[str, list[torch.Tensor]] = {"observations": [], "rewards": [], "endings": []}
    for _ in range(steps):
        seen["observations"].append(envs.observations.clone())
        rewards, endings = envs.step(torch.randint(ACTIONS, (count,), generator=dice))
        seen["rewards"].append(rewards.clone())
        seen["endings"].append(endings.clone())
    envs.close()
    return {name: torch.stack(tensors) for name, tensors in seen.items()}


def test_a_seed_is_a_world(parts):
    first, again, other = (drive(parts, seed, 100) for seed in (3, 3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["observations"][0], other["observations"][0])


def test_no_two_worlds_of_a_seed_are_alike(parts):
    envs = DriveEnvs(parts.library, 256, 1)
    assert len({tuple(row) for row in envs.observations.tolist()}) == 256
    envs.close()


def test_numbers_stay_where_a_network_likes_them(parts):
    seen = drive(parts, 1, 300)
    assert seen["observations"].isfinite().all()
    assert seen["observations"].abs().max() <= 3.5
    assert seen["rewards"].isfinite().all()
    assert seen["rewards"].abs().max() <= 3.5


def test_every_way_to_fail_happens_at_random_and_the_goal_hardly_ever(parts):
    endings = drive(parts, 1, 400, count=256)["endings"]
    counts = endings.flatten().bincount(minlength=len(ENDINGS) + 1)[1:]
    named = dict(zip(ENDINGS, counts.tolist(), strict=True))
    assert named["collision"] > 0
    assert named["off-road"] > 0
    assert named["goal"] < 0.2 * sum(named.values())


def test_who_stands_still_misses_the_goal_when_the_time_is_over(parts):
    envs = DriveEnvs(parts.library, 8, 1)
    rewards = torch.zeros(8)
    seen = []
    for _ in range(160):
        step_rewards, endings = envs.step(torch.full((8,), BRAKE))
        rewards += step_rewards
        seen.append(endings.clone())
    last = [next(int(e[i]) for e in seen if e[i]) for i in range(8)]
    envs.close()
    assert ENDINGS[max(last) - 1] == "missed"
    assert (rewards < 0).all()


def test_a_new_episode_begins_at_once_and_is_another(parts):
    envs = DriveEnvs(parts.library, 1, 1)
    first = envs.observations.clone()
    ending = torch.zeros(1)
    steps = 0
    while not ending.any():
        _, ending = envs.step(torch.tensor([ACCELERATE]))
        steps += 1
    elapsed = 11  # the share of the time that is over
    assert steps <= 160
    assert envs.observations[0, elapsed] == 0
    assert not torch.equal(envs.observations, first)
    envs.close()


def test_progress_is_what_pays(parts):
    coasting, braking = (DriveEnvs(parts.library, 32, 9) for _ in range(2))
    gained, lost = torch.zeros(32), torch.zeros(32)
    for _ in range(5):
        gained += coasting.step(torch.full((32,), COAST_AHEAD))[0]
        lost += braking.step(torch.full((32,), BRAKE))[0]
    coasting.close()
    braking.close()
    assert gained.mean() > lost.mean()


@pytest.mark.parametrize("actions", [[0, 1], [ACTIONS] * 4, [-1] * 4])
def test_wrong_actions_are_refused(parts, actions):
    envs = DriveEnvs(parts.library, 4, 1)
    with pytest.raises(ValueError, match="action"):
        envs.step(torch.tensor(actions))
    envs.close()


def test_python_and_c_agree_on_sizes(parts):
    library = load_library(parts.library)
    assert library.drive_envs_observations() == OBSERVATIONS
    assert library.drive_envs_actions() == ACTIONS
