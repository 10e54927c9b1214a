"""Kills builders at random moments and judges what is left; for a test and for the benchmark."""

import random
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

from artifact_project import Project, build, shell, started, write_toml
from harness import Run, wait_for

from puffrun.process import find_descendants, find_stat, read_stats, send_signal

# the output is half written for a while, at its final name
SCRIPT = (
    "printf half > {out}/out; sleep 0.15; cat in > {out}/out; sleep 0.05; echo end >> {out}/out"
)
BUILDERS = 3
WINDOW_S = 1.2  # from the start of the builders to the kill, at most
END_LIMIT_S = 60.0


def make_kill_project(root: Path) -> Project:
    spec = shell("thing", SCRIPT, inputs=("in",))
    write_toml(root, spec)
    return Project(root, (spec,))


def kill_one_round(project: Project, rng: random.Random, number: int) -> str:
    """Start builders on a stale artifact, kill one somehow, and check everything; what was done."""
    project.write("in", f"content {number}\n")
    with ExitStack() as stack:
        runs = [stack.enter_context(started(project.root)) for _ in range(BUILDERS)]
        _pass_time(runs[0], rng.uniform(0.0, WINDOW_S))
        _check_whatever_counts(project)
        what = rng.choice(("launcher", "guardian", "tree", "all launchers"))
        victims = runs if what == "all launchers" else [rng.choice(runs)]
        for victim in victims:
            _kill(victim, what)
        _check_whatever_counts(project)
        for run in runs:
            code = run.wait(END_LIMIT_S)
            assert code in _allowed_codes(run in victims, what), (what, code, run.stderr)
        final = build(project.root)
        assert final.wait() == 0, (what, final.stderr)
        assert read_output(Path(final.stdout.split()[1])) == expected(number), what
        for run in runs:
            wait_for(lambda run=run: not run.alive(), f"the end of all after {what}", END_LIMIT_S)
    assert (project.store("thing") / "lock").exists()
    return what


def expected(number: int) -> str:
    return f"content {number}\nend\n"


def read_output(directory: Path) -> str:
    return (directory / "out").read_text()


def _check_whatever_counts(project: Project) -> None:
    """What is called fresh at this very moment must be whole."""
    found = project.check("thing")["thing"]
    if found.dir is not None:
        assert read_output(found.dir) == (project.root / "in").read_text() + "end\n"


def _allowed_codes(is_victim: bool, what: str) -> tuple[int, ...]:  # noqa: FBT001
    """A victim may have been done before; a launcher whose guardian was killed reports it."""
    if not is_victim:
        return (0,)
    return (0, 71) if what == "guardian" else (0, -signal.SIGKILL)


def _pass_time(run: Run, seconds: float) -> None:
    """Let a random moment come: nothing is concluded from it."""
    try:
        run.popen.wait(seconds)
    except subprocess.TimeoutExpired:
        return


def _kill(run: Run, what: str) -> None:
    launcher = find_stat(run.popen.pid)
    below = find_descendants([run.popen.pid], read_stats())
    guardians = [stat for stat in below if stat.ppid == run.popen.pid]
    targets = {
        "launcher": [launcher],
        "all launchers": [launcher],
        "guardian": guardians[:1],
        "tree": [launcher, *below],
    }[what]
    for stat in targets:
        if stat is not None:
            send_signal(stat, signal.SIGKILL)
