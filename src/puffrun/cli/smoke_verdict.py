"""Where a verdict goes: the screen, JSON, JUnit, and GitHub when it is GitHub that runs us."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from puffrun.cli.caller import Caller
from puffrun.cli.standard_streams import write_stdout
from puffrun.console import Screen, make_screen
from puffrun.console.github import render_annotations, render_error, render_summary
from puffrun.console.junit import render_junit
from puffrun.console.smoke_lines import render_smoke
from puffrun.errors import PuffrunError, UsageError
from puffrun.smoke import SmokeResult
from puffrun.smoke.verdict_json import make_error_result, verdict_as_json


@dataclass(frozen=True)
class Reporter:
    """Delivers a verdict. `summary_path` is GitHub's step summary, which is appended to."""

    screen: Screen
    junit_path: Path | None
    as_json: bool
    on_github: bool
    workspace: Path | None
    summary_path: Path | None

    def report(self, result: SmokeResult, name: str, log_tail: Sequence[str] = ()) -> int:
        """Deliver everywhere and return the exit code.

        A green verdict that cannot be written where it is asked for is a usage error; a red one's
        own exit code says more.
        """
        lines = render_smoke(result, self.screen.width, paint=self.screen.paint, name=name)
        self.screen.say_lines(lines)
        if self.on_github:
            annotations = render_annotations(result, self.workspace)
            if annotations:
                self.screen.say_lines(annotations)
            self._append_summary(render_summary(result, name, tuple(log_tail)))
        code = result.exit_code
        for problem in self._write_files(result, name):
            self.screen.error(problem.message, problem.hint)
            self._annotate(problem)
            code = code or int(problem.exit_code)
        return code

    def report_error(self, error: PuffrunError, name: str) -> None:
        """Deliver why nothing was judged; the screen shows it at the very end."""
        self._annotate(error)
        for problem in self._write_files(make_error_result(error), name):
            self.screen.error(problem.message, problem.hint)

    def _annotate(self, error: PuffrunError) -> None:
        """Show GitHub what puffrun could not do."""
        if self.on_github:
            self.screen.say_lines([render_error(error)])

    def _write_files(self, result: SmokeResult, name: str) -> list[UsageError]:
        """Write what scripts read, each where it can be written; return what could not be."""
        problems = []
        try:
            self._write_junit(render_junit(result, name))
        except UsageError as error:
            problems.append(error)
        try:
            if self.as_json:
                write_stdout(json.dumps(verdict_as_json(result)) + "\n")
        except UsageError as error:
            problems.append(error)
        return problems

    def _append_summary(self, text: str) -> None:
        if self.summary_path is None:
            return
        try:
            with self.summary_path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(text)
        except OSError as error:  # the verdict does not depend on it
            self.screen.say(f"the step summary cannot be written: {error.strerror}")

    def _write_junit(self, text: str) -> None:
        if self.junit_path is None:
            return
        try:
            self.junit_path.parent.mkdir(parents=True, exist_ok=True)
            self.junit_path.write_text(text, encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(
                f"`--junit {self.junit_path}` cannot be written: {error.strerror}"
            ) from None


def make_reporter(caller: Caller, junit: Path | None, *, as_json: bool) -> Reporter:
    """Make the reporter for where puffrun runs.

    Raises:
        UsageError: the JUnit file could not be written where it is asked for.
    """
    environ = caller.environ
    path = None if junit is None else caller.cwd / junit
    if path is not None and path.is_dir():
        raise UsageError(f"`--junit {junit}` is a directory", hint="`--junit smoke.xml`")
    on_github = environ.get("GITHUB_ACTIONS") == "true"
    summary = environ.get("GITHUB_STEP_SUMMARY") if on_github else None
    workspace = environ.get("GITHUB_WORKSPACE")
    return Reporter(
        screen=make_screen(sys.stderr, environ),
        junit_path=path,
        as_json=as_json,
        on_github=on_github,
        workspace=Path(workspace) if workspace else caller.cwd,
        summary_path=Path(summary) if summary else None,
    )
