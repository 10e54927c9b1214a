"""`[train]` and `[artifacts.NAME]`, from TOML to frozen values."""

import re
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from puffrun.config.run_config import ArtifactSpec, TrainSection
from puffrun.config.table import Table, hint_nearest
from puffrun.errors import UsageError

_TRAIN_KEYS = tuple(f.name for f in fields(TrainSection))
_ARTIFACT_KEYS = (
    *(f.name for f in fields(ArtifactSpec) if f.name not in {"name", "timeout_s"}),
    "timeout",
)
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def load_train(table: Table, root_dir: Path, artifacts: tuple[ArtifactSpec, ...]) -> TrainSection:
    """Read `[train]`; relative paths refer to `root_dir`."""
    table.refuse_unknown(_TRAIN_KEYS)
    script, module, cwd = table.text("script"), table.text("module"), table.text("cwd")
    if script is not None and module is not None:
        raise UsageError(f"{table.file}: `script` and `module` in {table.name} exclude each other")
    if script is None and module is None and "args" in table.values:
        raise UsageError(f"{table.file}: `args` in {table.name} without `script` or `module`")
    if module is not None and not _MODULE.fullmatch(module):
        raise table.wrong("module", "a module such as `package.module`")
    return TrainSection(
        script=None if script is None else root_dir / script,
        module=module,
        args=table.texts("args"),
        cwd=None if cwd is None else root_dir / cwd,
        env=_load_env(table),
        artifacts=_load_names(table, artifacts),
    )


def _load_env(table: Table) -> tuple[tuple[str, str], ...]:
    pairs = table.pairs("env")
    for name, _ in pairs:
        if not name or "=" in name:
            raise UsageError(f"{table.file}: `{name}` in [train.env] is no variable name")
    return pairs


def _load_names(table: Table, artifacts: tuple[ArtifactSpec, ...]) -> tuple[str, ...] | None:
    if "artifacts" not in table.values:
        return None
    known = [a.name for a in artifacts]
    names = table.texts("artifacts")
    for name in names:
        if name not in known:
            raise UsageError(
                f"{table.file}: `artifacts` in {table.name} names `{name}`, which is no artifact",
                hint=hint_nearest(name, known),
            )
    return names


def load_artifacts(table: Table) -> tuple[ArtifactSpec, ...]:
    """Read every `[artifacts.NAME]`, in the order of the file."""
    return tuple(_load_artifact(table, name) for name in table.values)


def _load_artifact(parent: Table, name: str) -> ArtifactSpec:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UsageError(
            f"{parent.file}: an artifact cannot be called `{name}`",
            hint="use letters, digits, `_` and `-`",
        )
    table = parent.table(name)
    table.refuse_unknown(_ARTIFACT_KEYS)
    for key in ("cmd", "outputs"):
        if not table.texts(key):
            raise UsageError(f"{table.file}: {table.name} needs `{key}`, a list of strings")
    timeout_s = table.seconds("timeout", ArtifactSpec.timeout_s)
    if timeout_s == 0:
        raise table.wrong("timeout", "a number of seconds above 0")
    spec = ArtifactSpec(
        name=name,
        cmd=table.texts("cmd"),
        outputs=table.texts("outputs"),
        inputs=table.texts("inputs"),
        tools=table.texts("tools"),
        env=table.texts("env"),
        probe=table.texts("probe"),
        needs=table.texts("needs"),
        install=table.pairs("install"),
        mode=cast("Literal['staged', 'inplace']", table.choice("mode", ("staged", "inplace"))),
        timeout_s=timeout_s,
    )
    _refuse_paths(table, spec)
    return spec


def _refuse_paths(table: Table, spec: ArtifactSpec) -> None:
    """Refuse outputs and install targets outside their directory, and absolute inputs."""
    targets = [target for pair in spec.install for target in pair]
    for key, paths in (("outputs", spec.outputs), ("install", targets), ("inputs", spec.inputs)):
        for text in paths:
            path = PurePosixPath(text)
            outside = path.is_absolute() or (key != "inputs" and ".." in path.parts)
            if outside or not path.parts:
                raise UsageError(
                    f"{table.file}: `{key}` in {table.name} has `{text}`, "
                    "which is not a relative path inside its directory"
                )
