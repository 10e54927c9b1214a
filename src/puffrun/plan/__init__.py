"""What will happen: one frozen `LaunchPlan`, made from a `RunConfig` and an `Allocation`."""

from puffrun.plan.checks import check_plan
from puffrun.plan.devices import Devices, choose_devices
from puffrun.plan.environment import Environment, make_environment
from puffrun.plan.make import Invocation, make_plan
from puffrun.plan.values import LaunchPlan
from puffrun.plan.written import create_run_dir, plan_as_json

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
