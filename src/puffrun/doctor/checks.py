"""The checks, as a table: each looks at the facts and says what was found. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from puffrun.doctor import hardware, project, system
from puffrun.doctor.finding import Finding
from puffrun.doctor.machine_facts import Facts

__all__ = ["CHECKS", "Finding", "Row", "examine"]


@dataclass(frozen=True)
class Row:
    """One check: `text` is what was found where nothing is wrong."""

    name: str
    text: str
    findings: tuple[Finding, ...] = ()

    @property
    def state(self) -> Literal["ok", "note", "problem"]:
        """The worst of its findings."""
        if any(finding.level == "problem" for finding in self.findings):
            return "problem"
        return "note" if self.findings else "ok"


@dataclass(frozen=True)
class Check:
    """A name, a one-line description of what there is, and what is wrong with it."""

    name: str
    describe: Callable[[Facts], str]
    find: Callable[[Facts], list[Finding]]


CHECKS = (
    Check("torch", hardware.describe_software, hardware.check_software),
    Check("gpus", hardware.describe_gpus, hardware.check_gpus),
    Check("cuda", hardware.describe_cuda, hardware.check_cuda),
    Check("gpu holders", hardware.describe_holders, hardware.check_holders),
    Check("shared memory", system.describe_shm, system.check_shm),
    Check("open files", system.describe_files, system.check_files),
    Check("processes", system.describe_processes, system.check_processes),
    Check("host name", system.describe_network, system.check_network),
    Check("environment", lambda _: "nothing left over", system.check_variables),
    Check("orphans", lambda _: "no rank without a launcher", system.check_orphans),
    Check("disk", system.describe_spaces, system.check_spaces),
    Check("locks", system.describe_locks, system.check_locks),
    Check("stacks", system.describe_tracing, system.check_tracing),
    Check("cores", project.describe_cores, project.check_cores),
    Check("artifacts", project.describe_artifacts, project.check_artifacts),
    Check("extensions", lambda _: "none for another Python", project.check_extensions),
)


def examine(facts: Facts) -> tuple[Row, ...]:
    """Run every check."""
    return tuple(Row(c.name, c.describe(facts), tuple(c.find(facts))) for c in CHECKS)
