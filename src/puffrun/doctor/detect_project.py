"""Detects what the config asks for, and what lies in the project's tree."""

import importlib.machinery
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from puffrun.artifacts import Freshness
from puffrun.artifacts import check_artifacts as check_freshness
from puffrun.cluster import Allocation
from puffrun.config import ArtifactSpec, RunConfig
from puffrun.doctor.machine_facts import ArtifactFact, ForeignExtension, Project
from puffrun.errors import UsageError
from puffrun.plan.devices import choose_devices

MAX_ENTRIES = 20_000  # of a tree: a project, not a home directory
MAX_DEPTH = 8
_SKIPPED = frozenset(
    {"node_modules", "site-packages", "__pycache__", "venv", "env", "build", "dist"}
)
_TAGGED = re.compile(r"(?P<stem>.+?)\.(?:cpython-\d+[a-z]*|pypy\d+-\w+|cp\d+)(?:-[\w-]+)?\.so")
_WORKERS = re.compile(r"--?(?:[\w-]+\.)*(?:num[-_])?workers(?:=(\d+))?")


def detect_project(
    config: RunConfig,
    environ: Mapping[str, str],
    allocation: Allocation,
    geometry_problem: str | None,
) -> Project:
    """Look at the config against the machine."""
    artifacts, problem = _detect_artifacts(config, environ)
    threads = environ.get("OMP_NUM_THREADS", "")
    return Project(
        ranks=_count_ranks(config, allocation),
        workers=find_workers(config.train.args),
        cores=allocation.cores,
        threads=int(threads) if threads.isdecimal() else None,
        memory=_read_free_memory(),
        geometry_problem=geometry_problem,
        artifacts=artifacts,
        artifacts_problem=problem,
        extensions=tuple(find_foreign_extensions(config.root_dir)),
        build_command=config.build_command,
    )


def _count_ranks(config: RunConfig, allocation: Allocation) -> int:
    try:
        return choose_devices(config.launch, allocation).ranks
    except UsageError:
        return 1  # what cannot be had is said by `train`, which knows the flags


def find_workers(args: tuple[str, ...]) -> int:
    """Find a `--num-workers N` or its kin, such as `--vec.num-workers=8`, in the program's args."""
    for index, word in enumerate(args):
        found = _WORKERS.fullmatch(word)
        if found is None:
            continue
        value = found[1] or (args[index + 1] if index + 1 < len(args) else "")
        if value.isdecimal():
            return int(value)
    return 0


def _read_free_memory() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _detect_artifacts(
    config: RunConfig, environ: Mapping[str, str]
) -> tuple[tuple[ArtifactFact, ...], str | None]:
    if not config.artifacts:
        return (), None
    try:
        checked = check_freshness(config, None, env=environ)
    except UsageError as error:
        return (), error.message
    specs = {spec.name: spec for spec in config.artifacts}
    return tuple(_describe(specs[c.name], c, config.root_dir, environ) for c in checked), None


def _describe(
    spec: ArtifactSpec, checked: Freshness, root_dir: Path, environ: Mapping[str, str]
) -> ArtifactFact:
    """Take a look's result apart; what was never built is nothing to worry about."""
    is_new = any(reason.kind == "never-built" for reason in checked.reasons)
    reasons = [] if is_new else list(checked.reasons)
    missing = [
        tool
        for tool in spec.tools
        if not shutil.which(str(root_dir / tool) if "/" in tool else tool, path=environ.get("PATH"))
    ]
    return ArtifactFact(
        name=spec.name,
        fresh=checked.fresh,
        reasons=tuple(str(r) for r in reasons if r.kind != "probe"),
        abi_reasons=tuple(str(r) for r in reasons if r.kind == "probe"),
        missing_tools=() if checked.fresh else tuple(missing),
    )


def find_foreign_extensions(root_dir: Path) -> Iterator[ForeignExtension]:
    """Find compiled modules for other Pythons that have no sibling for this one."""
    own = importlib.machinery.EXTENSION_SUFFIXES
    for directory, names in _walk(root_dir):
        present = set(names)
        for name in sorted(names):
            tagged = _TAGGED.fullmatch(name)
            if tagged is None or name.endswith(own[0]):
                continue
            if present.isdisjoint(tagged["stem"] + suffix for suffix in own):
                yield ForeignExtension(os.path.relpath(directory / name, root_dir), own[0])


def _walk(root_dir: Path) -> Iterator[tuple[Path, list[str]]]:
    """Walk a tree within bounds, without hidden directories and environments."""
    seen = 0
    for path, dirs, files in os.walk(root_dir):
        seen += len(dirs) + len(files)
        depth = len(Path(path).relative_to(root_dir).parts)
        dirs[:] = [d for d in dirs if _is_walked(Path(path) / d)] if depth < MAX_DEPTH else []
        yield Path(path), files
        if seen > MAX_ENTRIES:
            return


def _is_walked(directory: Path) -> bool:
    name = directory.name
    if name.startswith(".") or name in _SKIPPED:
        return False
    return not (directory / "pyvenv.cfg").exists()
