"""A small project with artifacts, built in this process or by the real command."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness import MARK, Run, clean_environ, end

from puffrun.artifacts import (
    ArtifactEvent,
    BuildOptions,
    Freshness,
    StopToken,
    check_artifacts,
    ensure_artifacts,
)
from puffrun.config import ArtifactSpec, RunConfig
from puffrun.outcome import ArtifactResult


@dataclass
class Project:
    """A root directory, its artifacts, and what happened to them."""

    root: Path
    specs: tuple[ArtifactSpec, ...]
    env: dict[str, str] = field(default_factory=clean_environ)
    events: list[ArtifactEvent] = field(default_factory=list)

    @property
    def config(self) -> RunConfig:
        return RunConfig(self.root, self.root / ".puffrun", artifacts=self.specs)

    def ensure(
        self, *names: str, run_id: str = "run", stop: StopToken | None = None, **options
    ) -> tuple[ArtifactResult, ...]:
        self.events.clear()
        return ensure_artifacts(
            self.config,
            names or None,
            env=self.env,
            run_id=run_id,
            options=BuildOptions(**options),
            emit=self.events.append,
            stop=stop or StopToken(),
        )

    def check(self, *names: str) -> dict[str, Freshness]:
        found = check_artifacts(self.config, names or None, env=self.env)
        return {freshness.name: freshness for freshness in found}

    def reason(self, name: str) -> str:
        return self.check(name)[name].reason

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events if not _is_tick(event)]

    def write(self, path: str, text: str) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def store(self, name: str) -> Path:
        return self.root / ".puffrun" / "artifacts" / name


def _is_tick(event: ArtifactEvent) -> bool:
    return type(event).__name__ in ("Building", "Waiting")


def shell(name: str, script: str, *outputs: str, **fields) -> ArtifactSpec:
    """An artifact whose command is a shell script."""
    return ArtifactSpec(name, ("sh", "-c", script), outputs or ("out",), **fields)


def c_program(**fields) -> ArtifactSpec:
    """The artifact `prog`, compiled from C."""
    return ArtifactSpec(
        "prog",
        ("cc", "prog.c", "-o", "{out}/prog"),
        ("prog",),
        **{"inputs": ("*.c", "*.h"), "tools": ("cc",), "env": ("CFLAGS",), **fields},
    )


def make_c_project(root: Path, **fields) -> Project:
    project = Project(root, (c_program(**fields),))
    project.write("prog.c", '#include "prog.h"\nint main(void) { return VALUE; }\n')
    project.write("prog.h", "#define VALUE 3\n")
    return project


def write_toml(root: Path, spec: ArtifactSpec) -> None:
    """Write the same artifact as a config file, for the real command."""

    def quote(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def array(items: tuple[str, ...]) -> str:
        return "[" + ", ".join(quote(item) for item in items) + "]"

    lines = [
        f"[artifacts.{spec.name}]",
        f"cmd = {array(spec.cmd)}",
        f"outputs = {array(spec.outputs)}",
        f"inputs = {array(spec.inputs)}",
        f"mode = {quote(spec.mode)}",
        f"timeout = {spec.timeout_s}",
    ]
    (root / "puffrun.toml").write_text("\n".join(lines) + "\n")


@contextmanager
def started(root: Path, *args: str, env: dict[str, str] | None = None) -> Iterator[Run]:
    """Start `puffrun build-artifacts ARGS`; whatever happens, nothing of it is left."""
    mark = f"mark-{uuid.uuid4().hex}"
    out, err = root / f".{mark}.out", root / f".{mark}.err"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        popen = subprocess.Popen(
            [sys.executable, "-m", "puffrun", "build-artifacts", *args],
            cwd=root,
            env=clean_environ(**{MARK: mark}, **(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=out_file,
            stderr=err_file,
            start_new_session=True,
        )
    run = Run(popen, mark, root, root, out, err)
    try:
        yield run
    finally:
        end(run)


def build(root: Path, *args: str, env: dict[str, str] | None = None) -> Run:
    """Run `puffrun build-artifacts ARGS` to its end."""
    with started(root, *args, env=env) as run:
        run.wait()
    return run
