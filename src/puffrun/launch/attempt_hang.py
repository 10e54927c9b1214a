"""The hang verdict of an attempt: its evidence, and how its fallen ranks ended."""

from collections.abc import Mapping
from dataclasses import replace

from puffrun.diagnose import conclude_hang
from puffrun.evidence import Fallen, RankEvidence
from puffrun.naming import describe_exit
from puffrun.outcome import ErrorRecord, Hang
from puffrun.plan import LaunchPlan
from puffrun.watch import RankView, WatchState, looks_like_victim


def find_hang(
    state: WatchState,
    evidence: tuple[RankEvidence, ...],
    plan: LaunchPlan,
    late_errors: Mapping[int, ErrorRecord] | None = None,
) -> Hang | None:
    """Conclude who waited where; None when nobody was asked and nobody's error tells.

    `late_errors` were raised while the run was being ended: they accuse nobody, but a victim's
    tells in which collective it was.
    """
    late = late_errors or {}
    gone = [
        view
        for view in state.ranks.values()
        if view.error is not None or (view.exited and not view.exited_after_stop)
    ]
    gone += [
        replace(view, error=late[rank])
        for rank, view in state.ranks.items()
        if rank in late and view not in gone
    ]
    fallen = [_as_fallen(view) for view in gone]
    if state.succeeded or not (evidence or any(each.is_victim for each in fallen)):
        return None
    return conclude_hang(evidence, world_size=plan.world_size, cwd=plan.cwd, fallen=fallen)


def _as_fallen(view: RankView) -> Fallen:
    """Say how a rank ended, or is about to."""
    is_victim = view.failed and looks_like_victim(view)
    if view.error is not None:
        return Fallen(view.rank, f"raised {view.error.type}", view.error.frames, is_victim)
    how = "ended" if view.returncode is None else describe_exit(view.returncode)
    return Fallen(view.rank, how, (), is_victim)
