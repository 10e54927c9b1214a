"""What the ranks are doing: evidence taken from outside and from torch, and the hang verdict.

`collect_evidence` only reads, and disturbs no rank; `conclude_hang` is a pure function of it.
"""

from puffrun.diagnose.collect import (
    HASTY,
    MAX_AT_ONCE,
    PASSING,
    PATIENT,
    Patience,
    collect_evidence,
)
from puffrun.diagnose.evidence import Fallen, NativeState, RankEvidence
from puffrun.diagnose.kernel import (
    Zombie,
    find_crashed_children,
    find_litter,
    find_stopped,
    measure_cpu,
    read_io_bytes,
    read_log_tail,
)
from puffrun.diagnose.lateness import Lateness, add_lateness
from puffrun.diagnose.live import LiveRun, find_live_runs
from puffrun.diagnose.oom import OomWatch
from puffrun.diagnose.pulse import Pulse, read_pulse
from puffrun.diagnose.records import Collective, FlightRecord, parse_flight_record
from puffrun.diagnose.stacks import ThreadStack, parse_faulthandler, parse_py_spy, read_crash_frames
from puffrun.diagnose.verdict import conclude_hang
from puffrun.diagnose.waits import ends_with_exception, is_elsewhere

__all__ = [
    "HASTY",
    "MAX_AT_ONCE",
    "PASSING",
    "PATIENT",
    "Collective",
    "Fallen",
    "FlightRecord",
    "Lateness",
    "LiveRun",
    "NativeState",
    "OomWatch",
    "Patience",
    "Pulse",
    "RankEvidence",
    "ThreadStack",
    "Zombie",
    "add_lateness",
    "collect_evidence",
    "conclude_hang",
    "ends_with_exception",
    "find_crashed_children",
    "find_litter",
    "find_live_runs",
    "find_stopped",
    "is_elsewhere",
    "measure_cpu",
    "parse_faulthandler",
    "parse_flight_record",
    "parse_py_spy",
    "read_crash_frames",
    "read_io_bytes",
    "read_log_tail",
    "read_pulse",
]
