"""A short run that CI can trust, and the gate that a wheel has to pass before a release."""

from puffrun.smoke.gate import GateRequest, GateRun, pass_gate
from puffrun.smoke.judge import judge_run
from puffrun.smoke.run_signs import Evidence, collect_evidence
from puffrun.smoke.smoke_findings import Check, Finding, SmokeResult
from puffrun.smoke.suspicious import compile_allowed
from puffrun.smoke.wheel import Wheel, open_wheel

__all__ = [
    "Check",
    "Evidence",
    "Finding",
    "GateRequest",
    "GateRun",
    "SmokeResult",
    "Wheel",
    "collect_evidence",
    "compile_allowed",
    "judge_run",
    "open_wheel",
    "pass_gate",
]
