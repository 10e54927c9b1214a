"""The plan on disk: the run directory with its plan.json."""

import json
from typing import Any

from puffrun.errors import UsageError
from puffrun.plan.launch_plan import LaunchPlan
from puffrun.rundir import RunDir, write_atomically


def plan_as_json(plan: LaunchPlan) -> dict[str, Any]:
    """Return the plan as JSON values.

    Of the environment it has only what puffrun or the config put there, and what was dropped:
    the rest may hold secrets.
    """
    return {
        "schema": 1,
        "run_id": plan.run_id,
        "run_dir": str(plan.run_dir),
        "state_dir": str(plan.state_dir),
        "root_dir": str(plan.root_dir),
        "argv": list(plan.argv),
        "program": plan.program,
        "cwd": str(plan.cwd),
        "backend": plan.backend,
        "ranks_per_node": plan.ranks_per_node,
        "nodes": plan.nodes,
        "node_rank": plan.node_rank,
        "world_size": plan.world_size,
        "rdzv_endpoint": plan.rdzv_endpoint,
        "devices": list(plan.devices),
        "device_name": plan.device_name,
        "env_set": [{"name": n, "value": v, "why": w} for n, v, w in plan.env_set],
        "env_ignored": [{"name": n, "value": v} for n, v in plan.env_ignored],
        "artifacts": [a.name for a in plan.artifacts],
        "grace_s": plan.grace_s,
        "stall_timeout_s": plan.stall_timeout_s,
        "exit_timeout_s": plan.exit_timeout_s,
        "dead_child_timeout_s": plan.dead_child_timeout_s,
        "timeout_s": plan.timeout_s,
        "max_restarts": plan.max_restarts,
        "preload": plan.preload,
        "show_ranks": plan.show_ranks if plan.show_ranks == "all" else list(plan.show_ranks),
        "again": plan.again,
        "build_command": plan.build_command,
    }


def create_run_dir(plan: LaunchPlan) -> RunDir:
    """Create the run directory of a plan, with plan.json in it, and point `last` to it.

    Raises:
        UsageError: the directory cannot be created or written, or is in use.
    """
    run_dir = RunDir.create(plan.run_dir, plan.state_dir)
    try:
        write_atomically(run_dir.plan_path, json.dumps(plan_as_json(plan), indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"{run_dir.plan_path} cannot be written: {error.strerror}") from None
    return run_dir
