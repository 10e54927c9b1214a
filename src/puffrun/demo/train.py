"""PPO under DistributedDataParallel: each rank drives its own worlds, all learn one policy.

puffrun train -c demo                 all GPUs when there are some, else two ranks on the CPU
puffrun train -m puffrun.demo.train   the same program, from your own config
"""

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from puffrun import checkpoint, guard, latest_checkpoint, preflight, progress, run_once
from puffrun.demo.env import ACTIONS, ENDINGS, OBSERVATIONS, DriveEnvs
from puffrun.demo.policy import Policy, export_policy

GAMMA = 0.985
LAMBDA = 0.95
CLIP = 0.2
VALUE_WEIGHT = 0.5
REWARD_SCALE = 0.25  # keeps values near 1, so that the critic does not drown the actor
MAX_GRADIENT_NORM = 0.5
OUT = Path("demo-out")
STATE_FILE = "state.pt"  # in a checkpoint
EVAL_SEED = 2**60  # far above any training seed: these scenarios are never trained on


def parse_args() -> argparse.Namespace:
    """Read the options; PUFFRUN_SMOKE=1 and PUFFRUN_MAX_STEPS=N (updates) cut the run short."""
    smoke = os.environ.get("PUFFRUN_SMOKE") == "1"  # must not touch what was trained for real
    parser = argparse.ArgumentParser(prog="puffrun.demo.train", description="Learn to drive.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--updates", type=positive, default=100, help="updates of the policy")
    parser.add_argument("--envs", type=positive, default=512, help="worlds of each rank")
    parser.add_argument("--horizon", type=positive, default=32, help="decisions in each update")
    parser.add_argument("--epochs", type=positive, default=3, help="passes over an update's data")
    parser.add_argument("--minibatches", type=positive, default=8, help="steps of Adam per epoch")
    parser.add_argument("--learning-rate", type=float, default=2.5e-3)
    parser.add_argument("--entropy", type=float, default=0.003, help="weight of exploring")
    parser.add_argument("--out", type=Path, default=OUT / "smoke" if smoke else OUT)
    parser.add_argument("--checkpoint-every", type=positive, default=20, metavar="UPDATES")
    parser.add_argument("--resume", nargs="?", const="newest", metavar="PATH")
    parser.add_argument("--eval-episodes", type=positive, default=1024)
    parser.add_argument("--roads", type=positive, default=3, help="how many the picture shows")
    parser.add_argument("--require-goal-rate", type=float, metavar="PERCENT", help="else exit 1")
    args = parser.parse_args()
    if args.resume not in (None, "newest") and not (Path(args.resume) / STATE_FILE).is_file():
        parser.error(f"--resume: there is no checkpoint {args.resume}")
    if smoke:
        args.updates, args.envs, args.eval_episodes, args.roads = min(args.updates, 2), 64, 64, 1
    limit = os.environ.get("PUFFRUN_MAX_STEPS", "")
    if limit.isdecimal():
        args.updates = min(args.updates, max(1, int(limit)))
    return args


def positive(text: str) -> int:
    """Read a whole number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def find_artifact(name: str, file: str) -> Path:
    """Find a compiled part in the directory that puffrun names in the environment."""
    directory = os.environ.get(f"PUFFRUN_ARTIFACT_{name}")
    if not directory:
        sys.exit(f"{file} is not built: start this program with `puffrun train -c demo`")
    return Path(directory) / file


@dataclass(frozen=True)
class Ranks:
    """This process's place among the ranks, and the device that it computes on."""

    rank: int
    size: int
    device: torch.device


def join_ranks() -> Ranks:
    """Join the process group: nccl with a GPU per local rank, gloo otherwise.

    `torch.distributed.nn.functional` must be imported before: DDP imports it, its default arguments
    keep a group that exists by then, and gloo's threads would outlive `destroy_process_group` and
    now and then abort the interpreter's shutdown (torch 2.13).
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        backend = "nccl"
    else:
        device, backend = torch.device("cpu"), "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:  # a single process, without any launcher
        dist.init_process_group(backend, init_method="tcp://localhost:0", rank=0, world_size=1)
    return Ranks(dist.get_rank(), dist.get_world_size(), device)


@dataclass(frozen=True)
class Batch:
    """What one update learns from; every tensor has a row for each decision."""

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    advantages: Tensor
    returns: Tensor

    def shuffled(self, parts: int) -> Iterator["Batch"]:
        """Cut the rows into `parts` random minibatches."""
        for rows in torch.randperm(len(self.actions)).to(self.actions.device).chunk(parts):
            yield Batch(*(tensor[rows] for tensor in vars(self).values()))


@torch.no_grad()
def collect(policy: Policy, envs: DriveEnvs, args: argparse.Namespace) -> tuple[Batch, Tensor]:
    """Drive for `horizon` decisions. Returns the data, and float64 counts.

    The counts are one for each of ENDINGS, then the sum of rewards.
    """
    device = policy.actor.weight.device
    shape = (args.horizon, args.envs)
    observations = torch.zeros(*shape, envs.observations.shape[1], device=device)
    actions = torch.zeros(shape, dtype=torch.int64, device=device)
    log_probs, rewards, values, going = (torch.zeros(shape, device=device) for _ in range(4))
    counts = torch.zeros(len(ENDINGS) + 1, dtype=torch.float64)
    for t in range(args.horizon):
        observations[t] = envs.observations
        logits, values[t] = policy(observations[t])
        chances = logits.log_softmax(-1)
        actions[t] = chances.exp().multinomial(1).squeeze(-1)
        log_probs[t] = pick(chances, actions[t])
        reward, endings = envs.step(actions[t])
        rewards[t] = reward * REWARD_SCALE
        going[t] = endings == 0
        counts[:-1] += endings.bincount(minlength=len(ENDINGS) + 1)[1:]
        counts[-1] += reward.sum()
    _, last_values = policy(envs.observations.to(device))
    advantages = estimate_advantages(rewards, values, going, last_values)
    tensors = (observations, actions, log_probs, advantages, advantages + values)
    return Batch(*(tensor.flatten(0, 1) for tensor in tensors)), counts


def estimate_advantages(rewards: Tensor, values: Tensor, going: Tensor, last: Tensor) -> Tensor:
    """Weigh how much better each decision was than expected (GAE, Schulman et al. 2016).

    All are (horizon, envs); `going` is 0 where an episode ended, `last` the values after the end.
    """
    advantages = torch.zeros_like(rewards)
    running = torch.zeros_like(last)
    for t in reversed(range(len(rewards))):
        surprise = rewards[t] + GAMMA * going[t] * last - values[t]
        running = surprise + GAMMA * LAMBDA * going[t] * running
        advantages[t], last = running, values[t]
    return advantages


def ppo_loss(model: nn.Module, batch: Batch, entropy_weight: float) -> Tensor:
    """Compute the clipped objective of PPO (Schulman et al. 2017) with value and entropy terms."""
    logits, values = model(batch.observations)
    chances = logits.log_softmax(-1)
    entropy = -(chances.exp() * chances).sum(-1).mean()
    ratio = (pick(chances, batch.actions) - batch.log_probs).exp()
    advantages = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
    gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
    value_loss = (values - batch.returns).square().mean()
    loss: Tensor = VALUE_WEIGHT * value_loss - gain - entropy_weight * entropy
    return loss


def pick(chances: Tensor, actions: Tensor) -> Tensor:
    """Pick from each row of (batch, actions) the entry of the action taken."""
    return chances.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def learn(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    args: argparse.Namespace,
) -> None:
    """Improve the policy; the ranks' gradients are averaged in `backward`."""
    for _ in range(args.epochs):
        for part in batch.shuffled(args.minibatches):
            optimizer.zero_grad()
            ppo_loss(model, part, args.entropy).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()


@torch.no_grad()
def evaluate(policy: Policy, library_path: Path, episodes: int, ranks: Ranks) -> Tensor:
    """Drive this rank's share of the unseen scenarios; count how they ended on all ranks."""
    share = max(1, episodes // ranks.size)
    envs = DriveEnvs(library_path, share, EVAL_SEED + ranks.rank)
    first_endings = torch.zeros(share, dtype=torch.int64)
    while not first_endings.all():
        logits, _ = policy(envs.observations.to(ranks.device))
        _, endings = envs.step(logits.argmax(-1))
        first_endings = torch.where(first_endings == 0, endings, first_endings)
    envs.close()
    return sum_over_ranks(first_endings.bincount(minlength=len(ENDINGS) + 1)[1:].double(), ranks)


def sum_over_ranks(tensor: Tensor, ranks: Ranks) -> Tensor:
    """Add up a small tensor over all ranks."""
    total = tensor.to(ranks.device)
    dist.all_reduce(total)
    return total.cpu()


def describe_endings(counts: Tensor) -> str:
    """Say how the episodes ended, for example `goal  93.1 %  collision   2.0 %  …`."""
    percents = 100 * counts / counts.sum().clamp(min=1)
    return "  ".join(f"{n} {p:5.1f} %" for n, p in zip(ENDINGS, percents.tolist(), strict=True))


def resume(args: argparse.Namespace, policy: Policy, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint that `--resume` names, if any. Returns how many updates it has seen."""
    if args.resume is None:
        return 0
    newest = run_once(latest_checkpoint, args.out / "checkpoints")  # the same one on all ranks
    path = newest if args.resume == "newest" else Path(args.resume)
    if path is None:
        return 0
    state = torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)
    policy.load_state_dict(state["policy"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["update"])


def train(args: argparse.Namespace, library_path: Path, ranks: Ranks) -> Policy:
    """Make the updates that are left; rank 0 tells how it goes and writes the checkpoints."""
    torch.manual_seed(args.seed)
    policy = Policy(OBSERVATIONS, ACTIONS).to(ranks.device)
    optimizer = torch.optim.Adam(policy.parameters(), eps=1e-5)
    done = resume(args, policy, optimizer)
    seed = make_seed(args.seed, done, ranks.rank)
    preflight(policy, optimizer, same={"updates done": done}, differ={"seed": seed})
    model = DistributedDataParallel(policy)
    guard(optimizer)
    envs = DriveEnvs(library_path, args.envs, seed)
    for update in range(done + 1, args.updates + 1):
        started_at = time.monotonic()
        torch.manual_seed(make_seed(args.seed, update, ranks.rank))
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - (update - 1) / args.updates)
        batch, counts = collect(policy, envs, args)
        learn(model, optimizer, batch, args)
        counts = sum_over_ranks(counts, ranks)
        if ranks.rank == 0:
            decisions = args.envs * args.horizon * ranks.size
            speed = decisions / (time.monotonic() - started_at)
            tell(update, args.updates, update * decisions, counts, speed)
        if update % args.checkpoint_every == 0 or update == args.updates:
            keep(policy, optimizer, update, args.out / "checkpoints", ranks)
        progress(update, goal_rate=float(counts[0] / counts[:-1].sum().clamp(min=1)))
    envs.close()
    return policy


def make_seed(seed: int, update: int, rank: int) -> int:
    """Give every rank and every update random numbers of their own, also after `--resume`."""
    return (seed * 100_000 + update) * 10_000 + rank


def tell(update: int, updates: int, decisions: int, counts: Tensor, speed: float) -> None:
    """Print one line of the learning curve; the return is the mean of the episodes that ended."""
    mean_return = float(counts[-1] / counts[:-1].sum().clamp(min=1))
    print(
        f"update {update:3d}/{updates}  steps {decisions:9,d}  {describe_endings(counts[:-1])}  "
        f"return {mean_return:5.2f}  {speed:7,.0f} steps/s",
        flush=True,
    )


def keep(
    policy: Policy, optimizer: torch.optim.Optimizer, update: int, directory: Path, ranks: Ranks
) -> None:
    """Write a checkpoint and say where it is. All ranks have the same to write, so rank 0 does."""
    state = {
        "policy": policy.state_dict(),
        "optimizer": optimizer.state_dict(),
        "update": update,
    }
    with checkpoint(directory, update) as path:
        if ranks.rank == 0:
            torch.save(state, path / STATE_FILE)
    if ranks.rank == 0:
        published = max(directory.glob(f"step-{update:08d}*"))
        print(f"checkpoint {published}", flush=True)


def show(policy: Policy, visualize_path: Path, args: argparse.Namespace) -> None:
    """Export the policy and let `visualize` drive and draw it."""
    weights_path, picture_path = args.out / "drive.bin", args.out / "drive.gif"
    args.out.mkdir(parents=True, exist_ok=True)
    export_policy(policy, weights_path)
    digest = hashlib.sha256(weights_path.read_bytes()).hexdigest()
    print(f"weights {weights_path}  sha256 {digest[:16]}", flush=True)
    roads = [str(args.seed), str(args.roads)]
    subprocess.run([visualize_path, weights_path, picture_path, *roads], check=True)
    print(f"picture {picture_path}", flush=True)


def main() -> int:
    """Train, drive unseen roads, draw a picture."""
    args = parse_args()
    library_path = find_artifact("DRIVE_ENV", "libdrive.so")
    visualize_path = find_artifact("VISUALIZE", "visualize")
    ranks = join_ranks()
    policy = train(args, library_path, ranks)
    endings = evaluate(policy, library_path, args.eval_episodes, ranks)
    if ranks.rank == 0:
        print(f"eval on {int(endings.sum())} unseen roads  {describe_endings(endings)}", flush=True)
    run_once(show, policy, visualize_path, args)  # nobody leaves before the picture is drawn
    dist.destroy_process_group()
    goal_rate = float(100 * endings[0] / endings.sum())
    required = args.require_goal_rate
    return 1 if required is not None and goal_rate < required else 0


if __name__ == "__main__":
    sys.exit(main())
