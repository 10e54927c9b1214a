"""The report of a run: its JSON form, where it lies, and how to find the one that is meant."""

from puffrun.report.report_files import Report, load_report, write_report
from puffrun.report.run_lookup import find_run
from puffrun.report.schema import SCHEMA, outcome_from_json, report_as_json

__all__ = [
    "SCHEMA",
    "Report",
    "find_run",
    "load_report",
    "outcome_from_json",
    "report_as_json",
    "write_report",
]
