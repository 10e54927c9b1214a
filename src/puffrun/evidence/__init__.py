"""What is known of each rank: read from outside and asked of torch, disturbing nobody."""

from puffrun.evidence.collect import (
    HASTY,
    MAX_AT_ONCE,
    PASSING,
    PATIENT,
    Patience,
    collect_evidence,
)
from puffrun.evidence.flight_records import Collective, FlightRecord, parse_flight_record
from puffrun.evidence.kernel import (
    Zombie,
    find_crashed_children,
    find_litter,
    find_stopped,
    measure_cpu,
    read_io_bytes,
    read_log_tail,
)
from puffrun.evidence.live_runs import LiveRun, find_live_runs
from puffrun.evidence.oom import OomWatch
from puffrun.evidence.pulse import Pulse, read_pulse
from puffrun.evidence.rank_evidence import Fallen, NativeState, RankEvidence
from puffrun.evidence.thread_stacks import (
    ThreadStack,
    parse_faulthandler,
    parse_py_spy,
    read_crash_frames,
)

__all__ = [
    "HASTY",
    "MAX_AT_ONCE",
    "PASSING",
    "PATIENT",
    "Collective",
    "Fallen",
    "FlightRecord",
    "LiveRun",
    "NativeState",
    "OomWatch",
    "Patience",
    "Pulse",
    "RankEvidence",
    "ThreadStack",
    "Zombie",
    "collect_evidence",
    "find_crashed_children",
    "find_litter",
    "find_live_runs",
    "find_stopped",
    "measure_cpu",
    "parse_faulthandler",
    "parse_flight_record",
    "parse_py_spy",
    "read_crash_frames",
    "read_io_bytes",
    "read_log_tail",
    "read_pulse",
]
