"""What a smoke run found, as frozen values that the console draws and CI reads."""

from dataclasses import dataclass, field

from puffrun.outcome import Frame

ENV_SMOKE = "PUFFRUN_SMOKE"
ENV_MAX_STEPS = "PUFFRUN_MAX_STEPS"
RED = 1  # the exit code when the run itself went through, and what it left or printed did not


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, with the place in a source file where there is one.

    `frames` are a traceback's, outermost first; the last one in user code is the place.
    """

    title: str
    message: str = ""
    path: str | None = None
    line: int | None = None
    frames: tuple[Frame, ...] = ()
    hint: str | None = None


@dataclass(frozen=True)
class Check:
    """One question that was asked; green without a finding, and `text` says what was found then.

    `asked` is False when the run ended before the question made sense.
    """

    name: str
    text: str
    findings: tuple[Finding, ...] = ()
    asked: bool = True

    @property
    def green(self) -> bool:
        """Whether nothing is wrong; a question that was not asked is not red."""
        return not self.findings

    @property
    def said(self) -> str:
        """What to say of it: what is wrong, else what was found."""
        return "; ".join(finding.title for finding in self.findings) or self.text


@dataclass(frozen=True)
class SmokeResult:
    """The verdict: green when every check is. `duration_s` is wall clock."""

    exit_code: int
    duration_s: float
    checks: tuple[Check, ...]
    run_id: str | None = None
    run_dir: str | None = None
    facts: dict[str, str] = field(default_factory=dict)  # more to tell, such as what was imported

    @property
    def green(self) -> bool:
        """Whether the run passed."""
        return self.exit_code == 0

    @property
    def findings(self) -> tuple[tuple[Check, Finding], ...]:
        """Everything that is wrong, with the check that says so."""
        return tuple((check, finding) for check in self.checks for finding in check.findings)
