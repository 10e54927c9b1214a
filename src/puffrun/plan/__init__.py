"""What will happen: one frozen `LaunchPlan`, made from a `RunConfig` and an `Allocation`."""

from puffrun.plan.devices import Devices, choose_devices
from puffrun.plan.file_checks import check_plan
from puffrun.plan.launch_plan import LaunchPlan
from puffrun.plan.plan_file import create_run_dir, plan_as_json
from puffrun.plan.planning import Invocation, make_plan
from puffrun.plan.rank_environment import Environment, make_environment

__all__ = [
    "Devices",
    "Environment",
    "Invocation",
    "LaunchPlan",
    "check_plan",
    "choose_devices",
    "create_run_dir",
    "make_environment",
    "make_plan",
    "plan_as_json",
]
