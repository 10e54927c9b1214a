"""A program for smoke runs: argv[1] says what is wrong with it. No torch, so that it is quick."""

import os
import subprocess
import sys
import threading

import puffrun

RANK = int(os.environ["RANK"])
STEPS = int(os.environ["PUFFRUN_MAX_STEPS"])


def train(steps: int = STEPS) -> None:
    for step in range(steps):
        puffrun.progress(step)
    print(f"trained {steps} steps", flush=True)


def hang() -> None:
    train()
    threading.Event().wait(3600)


def fail() -> None:
    train(1)
    if RANK == 1:
        raise ValueError("expected 64 observations, got 63")
    threading.Event().wait(3600)


def disagree() -> None:
    train(1)
    raise puffrun.DisagreementError("preflight: rank 1 differs from rank 0")


def leave() -> None:
    train()
    if RANK == 1:
        subprocess.Popen(["sleep", "3600"], start_new_session=True)


def complain() -> None:
    train()
    if RANK == 1:
        print("step 3  loss nan", flush=True)


def train_one() -> None:
    if RANK == 0:
        train()


WAYS = {
    "good": train,
    "raises": fail,
    "hangs": hang,
    "disagrees": disagree,
    "leaves": leave,
    "complains": complain,
    "idles": lambda: None,
    "trains-one": train_one,
    "prints": lambda: print("no call of progress", flush=True),
}

if __name__ == "__main__":
    WAYS[sys.argv[1]]()
