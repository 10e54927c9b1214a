"""Checks of the project: what the config asks for against what there is. Pure."""

from puffrun.doctor.finding import Finding
from puffrun.doctor.machine_facts import Facts
from puffrun.doctor.system import GIB, render_bytes

MEMORY_PER_RANK = GIB // 2  # torch, once imported, and a small model


def describe_cores(facts: Facts) -> str:
    """Set ranks against cores."""
    project = facts.project
    workers = f" x {project.workers} workers" if project.workers else ""
    return f"{project.ranks} ranks{workers} on {project.cores} cores"


def check_cores(facts: Facts) -> list[Finding]:
    """Ask whether ranks, workers and threads fit the cores, and ranks the memory."""
    project = facts.project
    found = []
    if project.geometry_problem:
        found.append(
            Finding(
                project.geometry_problem,
                "puffrun starts the ranks itself",
                "srun --ntasks-per-node=1 puffrun train",
            )
        )
    wanted = project.ranks * max(project.workers, 1)
    if wanted > project.cores:
        is_worse = project.workers > 0
        found.append(
            Finding(
                f"{describe_cores(facts)}",
                "they take turns, and every collective waits for the last one",
                f"--cpus {max(1, project.cores // max(project.workers, 1))}, or fewer workers",
                "problem" if is_worse else "note",
            )
        )
    elif project.threads and project.threads * project.ranks > project.cores:
        threads = f"OMP_NUM_THREADS={project.threads} x {project.ranks} ranks"
        found.append(
            Finding(
                f"{threads} on {project.cores} cores",
                "threads of different ranks push each other aside",
                "unset OMP_NUM_THREADS",
                "note",
            )
        )
    return [*found, *_check_memory(facts)]


def _check_memory(facts: Facts) -> list[Finding]:
    project = facts.project
    needed = project.ranks * MEMORY_PER_RANK
    if project.memory is None or project.memory >= needed:
        return []
    return [
        Finding(
            f"{render_bytes(project.memory)} of memory are free, {project.ranks} ranks need about "
            f"{render_bytes(needed)}",
            "the kernel kills a rank when memory runs out",
            "free -h",
        )
    ]


def describe_artifacts(facts: Facts) -> str:
    """Count them."""
    count = len(facts.project.artifacts)
    fresh = sum(1 for artifact in facts.project.artifacts if artifact.fresh)
    return f"{fresh} of {count} built and fresh" if count else "none needed"


def check_artifacts(facts: Facts) -> list[Finding]:
    """Name artifacts that cannot be built, or were built for another Python or torch."""
    build = facts.project.build_command
    if facts.project.artifacts_problem:
        return [
            Finding(
                facts.project.artifacts_problem,
                "no rank starts before its artifacts are there",
                f"{build} --explain",
            )
        ]
    found = []
    for artifact in facts.project.artifacts:
        name = artifact.name
        if artifact.missing_tools:
            found.append(
                Finding(
                    f"artifact `{name}` needs {', '.join(artifact.missing_tools)}, not on PATH",
                    "its build fails",
                    f"command -v {artifact.missing_tools[0]}",
                )
            )
        if artifact.abi_reasons:
            found.append(
                Finding(
                    f"artifact `{name}` was built for another environment: "
                    f"{', '.join(artifact.abi_reasons)}",
                    "what was built does not load here; a read-only store cannot be built again",
                    f"{build} {name}",
                )
            )
        elif artifact.reasons:
            found.append(
                Finding(
                    f"artifact `{name}` is stale: {', '.join(artifact.reasons[:3])}",
                    "the next run builds it first",
                    f"{build} {name}",
                    "note",
                )
            )
    return found


def check_extensions(facts: Facts) -> list[Finding]:
    """Name compiled modules in the tree that only another Python can import."""
    return [
        Finding(
            f"{extension.path} is for another Python; this one looks for *{extension.own}",
            "the import fails with `No module named …`, or finds an older one elsewhere",
            f"rm {extension.path}   and build it again with this Python",
        )
        for extension in facts.project.extensions
    ]
