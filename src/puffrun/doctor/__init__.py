"""What would go wrong here, before it does: facts are detected once, checks are pure."""

from puffrun.doctor.checks import Finding, Row, examine
from puffrun.doctor.detect import detect_facts
from puffrun.doctor.machine_facts import Facts

__all__ = ["Facts", "Finding", "Row", "detect_facts", "examine"]
