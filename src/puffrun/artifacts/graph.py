"""Which artifacts are asked for, in which order they are built, and whether they make sense."""

import difflib
import re
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath

from puffrun.artifacts.freshness.probes import PROBES
from puffrun.config import ArtifactSpec
from puffrun.errors import UsageError
from puffrun.rundir import artifact_env_name

ARTIFACT_REFERENCE = re.compile(r"\{artifact:([^{}]*)\}")


def select_artifacts(
    specs: Sequence[ArtifactSpec], names: Sequence[str] | None
) -> tuple[ArtifactSpec, ...]:
    """Pick the named artifacts and all they need, each after its needs; None: all of them.

    Raises:
        UsageError: a name is not known, the needs go in a circle, or an artifact is not sound.
    """
    known = {spec.name: spec for spec in specs}
    wanted = {spec.name for spec in select_named(specs, names)}
    for spec in specs:
        for need in spec.needs:
            _require_known(need, known, f"artifact `{spec.name}` needs `{{}}`, which is not there")
    order = _sort(specs)
    for name in reversed(order):
        if name in wanted:
            wanted.update(known[name].needs)
    selected = tuple(known[name] for name in order if name in wanted)
    for spec in selected:
        _check_spec(spec)
    _check_destinations(specs)
    _check_variables(specs)
    return selected


def select_named(
    specs: Sequence[ArtifactSpec], names: Sequence[str] | None
) -> tuple[ArtifactSpec, ...]:
    """Pick the named artifacts only; None: all of them.

    Raises:
        UsageError: a name is not known.
    """
    known = {spec.name: spec for spec in specs}
    for name in names or ():
        _require_known(name, known, "there is no artifact `{}`")
    return tuple(spec for spec in specs if names is None or spec.name in names)


def list_destinations(spec: ArtifactSpec) -> tuple[str, ...]:
    """List the paths in the tree that an artifact writes: installed copies, in-place outputs."""
    inplace = spec.outputs if spec.mode == "inplace" else ()
    return (*inplace, *(target for _, target in spec.install))


def _sort(specs: Sequence[ArtifactSpec]) -> list[str]:
    try:
        return list(TopologicalSorter({spec.name: spec.needs for spec in specs}).static_order())
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise UsageError(
            f"artifacts need each other in a circle: {circle}", hint="remove one of these `needs`"
        ) from None


def _require_known(name: str, known: Iterable[str], message: str) -> None:
    if name not in known:
        raise UsageError(message.format(name), hint=suggest(name, known))


def suggest(name: str, known: Iterable[str]) -> str:
    """Name the nearest of the known names, or all of them."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    if nearest:
        return f"did you mean `{nearest[0]}`?"
    return "known are " + ", ".join(f"`{n}`" for n in names) if names else "none is configured"


def _check_spec(spec: ArtifactSpec) -> None:
    where = f"artifact `{spec.name}`"
    if not spec.cmd:
        raise UsageError(f"{where} has no command", hint='cmd = ["cc", …, "-o", "{out}/…"]')
    if not spec.outputs:
        raise UsageError(f"{where} names no outputs", hint='outputs = ["…"], relative to {out}')
    for path in (*spec.outputs, *(target for _, target in spec.install)):
        _check_path(where, path)
    for probe in spec.probe:
        _require_known(probe, PROBES, f"{where}: there is no probe `{{}}`")
    for output, _ in spec.install:
        _require_known(output, spec.outputs, f"{where} installs `{{}}`, which is no output of it")
    for part in spec.cmd:
        for need in ARTIFACT_REFERENCE.findall(part):
            _require_known(need, spec.needs, f"{where} uses {{{{artifact:{need}}}}} without need")


def _check_path(where: str, path: str) -> None:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or pure.name == "":
        raise UsageError(
            f"{where}: `{path}` is not a relative path below the project",
            hint="outputs are relative to {out}, installed copies to the config's directory",
        )


def _check_destinations(specs: Sequence[ArtifactSpec]) -> None:
    owners: dict[PurePosixPath, str] = {}
    for spec in specs:
        for path in list_destinations(spec):
            owner = owners.setdefault(PurePosixPath(path), spec.name)
            if owner != spec.name:
                raise UsageError(
                    f"artifacts `{owner}` and `{spec.name}` both write `{path}`",
                    hint="give one of them another name for it",
                )


def _check_variables(specs: Sequence[ArtifactSpec]) -> None:
    """Refuse names whose environment variables are the same, such as `a-b` and `a_b`."""
    owners: dict[str, str] = {}
    for spec in specs:
        variable = artifact_env_name(spec.name)
        owner = owners.setdefault(variable, spec.name)
        if owner != spec.name:
            raise UsageError(
                f"artifacts `{owner}` and `{spec.name}` are both ${variable} to the ranks",
                hint="rename one of them",
            )
