"""What the files of a run show besides its report: progress, output, the build's last words."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from puffrun.heartbeat import read_heartbeat
from puffrun.outcome import Outcome
from puffrun.rundir import RunDir
from puffrun.smoke.suspicious import Suspicion, find_suspicions

MAX_LOG_BYTES = 64 << 20  # of one rank; a smoke run that prints more is looked at in part
_COMPILER_ERROR = re.compile(r"^(\S[^:\n]*):(\d+)(?::\d+)?: (?:fatal )?error: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class RankEvidence:
    """What one rank did: how often it called `progress()`, its last step, what it printed."""

    rank: int
    calls: int = 0
    step: int | None = None
    printed_bytes: int = 0
    suspicions: tuple[Suspicion, ...] = ()


@dataclass(frozen=True)
class CompilerError:
    """The first error that a build printed, as compilers print them."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class Evidence:
    """What was found in a run's files; `build_errors` by the artifact's name."""

    ranks: tuple[RankEvidence, ...] = ()
    build_errors: tuple[tuple[str, CompilerError], ...] = ()


def collect_evidence(
    run_dir: RunDir, outcome: Outcome, root_dir: Path, allowed: Sequence[re.Pattern[str]] = ()
) -> Evidence:
    """Read what there is; a build's paths are made absolute with `root_dir`, where it ran."""
    ranks = tuple(_read_rank(run_dir, result.rank, allowed) for result in outcome.ranks)
    errors = []
    for artifact in outcome.artifacts:
        if artifact.state == "failed" and artifact.log_path:
            error = find_compiler_error(_read_text(Path(artifact.log_path)), root_dir)
            if error is not None:
                errors.append((artifact.name, error))
    return Evidence(ranks, tuple(errors))


def _read_rank(run_dir: RunDir, rank: int, allowed: Sequence[re.Pattern[str]]) -> RankEvidence:
    beat = read_heartbeat(run_dir.heartbeat_path(rank))
    log_path = run_dir.log_path(rank)
    size = log_path.stat().st_size if log_path.exists() else 0
    return RankEvidence(
        rank=rank,
        calls=beat.calls if beat else 0,
        step=beat.step if beat else None,
        printed_bytes=size,
        suspicions=find_suspicions(rank, _read_lines(log_path), allowed),
    )


def _read_lines(path: Path) -> Iterator[str]:
    """Read a log line by line, within the limit; one that is not there has none."""
    try:
        with path.open("rb") as file:
            left = MAX_LOG_BYTES
            while left > 0 and (line := file.readline(1 << 16)):
                left -= len(line)
                yield line.decode("utf-8", "replace").rstrip("\n")
    except FileNotFoundError:
        return


def find_compiler_error(text: str, root_dir: Path) -> CompilerError | None:
    """Find the first `file:line: error: …` of a build's output."""
    found = _COMPILER_ERROR.search(text)
    if found is None:
        return None
    return CompilerError(str(root_dir / found[1]), int(found[2]), found[3].strip())


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes()[-(1 << 20) :].decode("utf-8", "replace")
    except OSError:
        return ""
