"""The release gate: proves the built wheel, in an environment that knows no checkout."""

import json
import re
import select
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from puffrun.artifacts import StopToken
from puffrun.errors import ExitCode, StoppedError, UsageError
from puffrun.process import start_guarded
from puffrun.smoke import look
from puffrun.smoke.smoke_findings import RED, Check, Finding, SmokeResult
from puffrun.smoke.verdict_json import read_verdict
from puffrun.smoke.wheel import Wheel
from puffrun.smoke.wheel_contents import find_missing_inits, find_missing_modules

VENV_TIMEOUT_S = 180.0
INSTALL_TIMEOUT_S = 3600.0  # torch is two gigabytes
LOOK_TIMEOUT_S = 300.0
RUN_MARGIN_S = 120.0  # beyond the run's own time limit, for its artifacts and its end
END_TIMEOUT_S = 30.0
TAIL_LINES = 25
_DROPPED = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
_DROPPED_STARTS = ("PUFFRUN_", "GITHUB_", "COVERAGE_", "PYTEST_")


@dataclass(frozen=True)
class GateRun:
    """One smoke run of the wheel: on what, and the options that say so."""

    name: str
    options: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True)
class GateRequest:
    """What the gate needs. `target` stands after the options; `checkouts` must not be reached."""

    wheel: Wheel
    python: str
    has_pip: bool
    environ: Mapping[str, str]
    extra_sites: tuple[Path, ...]
    checkouts: tuple[Path, ...]
    target: tuple[str, ...]
    runs: tuple[GateRun, ...]


def pass_gate(
    request: GateRequest, emit: Callable[[str], None], stop: StopToken
) -> tuple[SmokeResult, tuple[str, ...]]:
    """Put a wheel to the proof; also returns the lines that a run which failed has printed.

    The directory that everything happens in is removed, but for that of a run that failed.

    Raises:
        UsageError: the temporary directory lies in the checkout.
        StoppedError: `stop` was set; nothing is left.
    """
    work_dir = Path(tempfile.mkdtemp(prefix="puffrun-gate-")).resolve()
    keep = False
    try:
        _refuse_inside(work_dir, request.checkouts)
        gate = _Gate(request, work_dir, emit, stop)
        result = gate.run()
        keep = gate.ran and not result.green
        facts = {**result.facts, **({"kept": str(work_dir)} if keep else {})}
        return replace(result, facts=facts), gate.printed
    finally:
        if not keep:
            shutil.rmtree(work_dir, ignore_errors=True)


def _refuse_inside(work_dir: Path, checkouts: Sequence[Path]) -> None:
    for checkout in checkouts:
        if work_dir.is_relative_to(checkout.resolve()):
            raise UsageError(
                f"the temporary directory {work_dir.parent} lies in the checkout {checkout}",
                hint="`TMPDIR=/tmp puffrun smoke --wheel …`",
            )


@dataclass(frozen=True)
class Ended:
    """How a command of the gate ended; `returncode` is None when it ran out of time."""

    returncode: int | None
    out: str
    err: str

    @property
    def tail(self) -> str:
        """The last lines that it printed."""
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return "\n".join(lines[-TAIL_LINES:])


class _Gate:
    """The stages, in order; the first red one ends it."""

    def __init__(
        self, request: GateRequest, work_dir: Path, emit: Callable[[str], None], stop: StopToken
    ) -> None:
        self._request = request
        self._dir = work_dir
        self._emit = emit
        self._stop = stop
        self._venv_dir = work_dir / "venv"
        self._python = self._venv_dir / "bin" / "python"
        self._empty_dir = work_dir / "empty"
        self._started_s = time.monotonic()
        self._facts: dict[str, str] = {}
        self.ran = False
        self.printed: tuple[str, ...] = ()

    def run(self) -> SmokeResult:
        self._empty_dir.mkdir()
        checks: list[Check] = []
        for stage in (self._check_contents, self._make_venv, self._install, self._import_all):
            checks.append(stage())
            if not checks[-1].green:
                return self._conclude(RED, checks)
        code = 0
        for run in self._request.runs:
            code = code or self._smoke(run, checks)
        return self._conclude(code, checks)

    def _conclude(self, code: int, checks: list[Check]) -> SmokeResult:
        duration_s = time.monotonic() - self._started_s
        return SmokeResult(code, duration_s, tuple(checks), facts=dict(self._facts))

    def _check_contents(self) -> Check:
        """Look for what RECORD promises and what the sources need."""
        wheel = self._request.wheel
        self._emit(f"wheel {wheel.path.name}  {len(wheel.files)} files")
        present = set(wheel.files)
        lost = [path for path in wheel.recorded if path not in present]
        findings = [
            Finding(f"`{path}` is missing from the wheel", "its RECORD lists it") for path in lost
        ]
        package = re.sub(r"[-.]", "_", wheel.name)
        inits = [path for path in find_missing_inits(wheel.files, package) if path not in lost]
        findings += [
            Finding(
                f"`{path}` is missing from the wheel",
                "its directory has modules, and would be imported as a namespace package",
            )
            for path in inits
        ]
        named = {*lost, *inits}
        for module in find_missing_modules(wheel.read_sources()):
            as_path = module.name.replace(".", "/")
            if not named.intersection((f"{as_path}.py", f"{as_path}/__init__.py")):
                findings.append(
                    Finding(
                        f"module `{module.name}` is missing from the wheel",
                        f"{module.needed_by}:{module.line} needs it",
                    )
                )
        return Check("contents", f"{len(wheel.files)} files, nothing missing", tuple(findings))

    def _make_venv(self) -> Check:
        self._emit(f"a fresh environment in {self._dir}")
        pip = ("--without-pip",) if self._request.has_pip else ()
        argv = (self._request.python, "-m", "venv", *pip, str(self._venv_dir))
        return self._as_check("environment", "a fresh environment", self._do(argv, VENV_TIMEOUT_S))

    def _install(self) -> Check:
        """Install the wheel alone first, so that no copy elsewhere counts; then what it depends on.

        A path file of a path file is not followed, so an editable install in an extra site is not
        seen.
        """
        wheel, pip = str(self._request.wheel.path), self._pip()
        self._emit(f"installing {self._request.wheel.path.name} and what it depends on")
        first = self._do((*pip, "install", "--no-deps", wheel), INSTALL_TIMEOUT_S)
        if first.returncode != 0:
            return self._as_check("install", "", first)
        scheme = {"base": str(self._venv_dir), "platbase": str(self._venv_dir)}
        site_dir = Path(sysconfig.get_path("purelib", "venv", scheme))
        lines = "".join(f"{path}\n" for path in self._request.extra_sites)
        (site_dir / "gate-extra-sites.pth").write_text(lines, encoding="utf-8")
        ended = self._do((*pip, "install", wheel), INSTALL_TIMEOUT_S)
        return self._as_check("install", f"{self._request.wheel.name} and its dependencies", ended)

    def _pip(self) -> tuple[str, ...]:
        quiet = ("--disable-pip-version-check", "--no-input", "--no-color")
        if self._request.has_pip:
            return (self._request.python, "-m", "pip", "--python", str(self._python), *quiet)
        return (str(self._python), "-m", "pip", *quiet)

    def _import_all(self) -> Check:
        """Import every module of the wheel in its environment, and say what came from where."""
        request_path = self._dir / "look.json"
        modules = [m for m in self._request.wheel.modules if not m.endswith("__main__")]
        allowed = [str(self._venv_dir), *(str(path) for path in self._request.extra_sites)]
        wanted = {
            "modules": modules,
            "forbidden": [str(path) for path in self._request.checkouts],
            "allowed": allowed,
        }
        request_path.write_text(json.dumps(wanted), encoding="utf-8")
        script = str(shutil.copy(look.__file__, self._dir))
        argv = (str(self._python), "-I", script, str(request_path))
        ended = self._do(argv, LOOK_TIMEOUT_S)
        try:
            seen = json.loads(ended.out.splitlines()[-1])
        except (ValueError, IndexError):
            return self._as_check("imports", "", replace(ended, returncode=ended.returncode or 1))
        return self._judge_imports(seen, modules)

    def _judge_imports(self, seen: dict[str, dict[str, str]], modules: list[str]) -> Check:
        files = seen["files"]
        findings = [
            Finding(f"`import {name}` fails in the wheel's environment", error)
            for name, error in seen["errors"].items()
        ]
        findings += [
            Finding(f"`{name}` was imported from the checkout", path)
            for name, path in seen["strangers"].items()
        ]
        roots = dict.fromkeys(name.split(".")[0] for name in modules)
        for name in (*roots, "puffrun", "torch"):
            if name in files:
                self._facts[f"import {name}"] = files[name]
        for name in roots:
            path = files.get(name, "")
            if path and not Path(path).is_relative_to(self._venv_dir):
                findings.append(Finding(f"`{name}` was not imported from the wheel", path))
        for name, path in self._facts.items():
            self._emit(f"{name}  from {path}")
        return Check("imports", f"{len(modules)} modules from the wheel", tuple(findings))

    def _smoke(self, run: GateRun, checks: list[Check]) -> int:
        """Run `puffrun smoke` of the wheel from an empty directory."""
        self._emit(f"smoke run on {run.name}")
        self.ran = True
        script = self._venv_dir / "bin" / "puffrun"
        start = (str(script),) if script.exists() else (str(self._python), "-m", "puffrun")
        argv = (*start, "smoke", "--json", *run.options, *self._request.target)
        ended = self._do(argv, run.timeout_s + RUN_MARGIN_S)
        verdict = read_verdict(ended.out)
        if verdict is None:
            how = f"exited {ended.returncode}" if ended.returncode is not None else "took too long"
            finding = Finding(f"`puffrun smoke` {how} without a verdict", ended.tail)
            checks.append(Check(f"{run.name} run", how, (finding,)))
        else:
            checks += [replace(check, name=f"{run.name} {check.name}") for check in verdict]
        green = ended.returncode == 0 and verdict is not None
        if not green:
            self.printed += tuple(ended.err.splitlines())
        code = ended.returncode or 0
        return 0 if green else code if code not in (0, ExitCode.USAGE) and code > 0 else RED

    def _as_check(self, name: str, text: str, ended: Ended) -> Check:
        if ended.returncode == 0:
            return Check(name, text)
        how = "took too long" if ended.returncode is None else f"exited {ended.returncode}"
        title = {
            "environment": "no virtual environment could be made",
            "install": "the wheel could not be installed",
            "imports": "the wheel's modules could not be imported",
        }[name]
        return Check(name, how, (Finding(f"{title}: it {how}", ended.tail),))

    def _do(self, argv: tuple[str, ...], timeout_s: float) -> Ended:
        """Run one command from the empty directory to its end, or end it.

        Raises:
            StoppedError: the gate was told to stop; the command has been ended.
        """
        out_path, err_path = self._dir / "out", self._dir / "err"
        with out_path.open("wb") as out, err_path.open("wb") as err:
            guarded = start_guarded(
                argv,
                cwd=self._empty_dir,
                env=make_gate_environ(self._request.environ, self._venv_dir),
                stdout=out.fileno(),
                stderr=err.fileno(),
            )
            deadline = time.monotonic() + timeout_s
            ended, in_time = None, True
            while ended is None:
                left = deadline - time.monotonic()
                select.select([guarded.fileno(), self._stop.fileno()], [], [], max(0.0, left))
                in_time = time.monotonic() < deadline
                if self._stop.is_set() or not in_time:
                    guarded.stop()
                    ended = guarded.wait(END_TIMEOUT_S)
                    break
                ended = guarded.wait(0.0)
        if self._stop.is_set():
            raise StoppedError(self._stop.signum or 0)
        texts = [path.read_text("utf-8", "replace") for path in (out_path, err_path)]
        return Ended(ended.returncode if ended and in_time else None, texts[0], texts[1])


def make_gate_environ(environ: Mapping[str, str], venv_dir: Path) -> dict[str, str]:
    """Make an environment in which nothing leads back to a checkout. Pure."""
    kept = {
        name: value
        for name, value in environ.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_STARTS)
    }
    path = f"{venv_dir / 'bin'}:{environ.get('PATH', '')}".rstrip(":")
    return kept | {"PATH": path, "PYTHONNOUSERSITE": "1", "NO_COLOR": "1"}
