"""Benchmark of the in-rank library: 2 ranks, 2,400 parameters; agreements of 1,000 clients.

    python tests/bench/bench_rank.py

Prints a table. The guard is measured against a bare all_reduce of four integers, in turn.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ranks import join_gloo, ranks, run_ranks, torch
from torch import distributed as dist
from torch import nn

from puffrun import agree, guard, preflight, progress
from puffrun.library.agreement.board import FOREVER, Board
from puffrun.library.agreement.meeting import Meeting, Meetings, find_meetings
from puffrun.library.agreement.meeting_verdict import Arrival, conclude
from puffrun.library.world import World

PARAMETERS = 2400
ROUNDS = 200
CLIENTS = (128, 256, 500, 1000)  # multiples of PROCESSES
PROCESSES = 4
CONNECTIONS = 4  # of each process
LIMITS_MS = {"preflight": 50.0, "guard, over a bare all_reduce": 1.0, "agree": 2.0}


def make_model() -> nn.Module:
    """A model of many small parameters."""
    return nn.ParameterDict(
        {f"layer_{i}_weight": nn.Parameter(torch.ones(8, 8)) for i in range(PARAMETERS)}
    )


def measure_library(rank: int, mail: Any) -> dict[str, list[float]]:
    """Measure on one of two ranks; milliseconds of each call."""
    join_gloo()
    model = make_model()
    optimizer = torch.optim.AdamW(model.named_parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    found: dict[str, list[float]] = {"preflight": [], "bare": [], "guarded": [], "agree": []}
    for _ in range(9):
        with agree("start together"):
            pass
        found["preflight"].append(time_ms(lambda: preflight(model, optimizer)))
    hook = make_hook(optimizer)
    numbers = torch.zeros(4, dtype=torch.int64)
    for _ in range(ROUNDS):
        found["bare"].append(time_ms(lambda: dist.all_reduce(numbers, dist.ReduceOp.MAX)))
        found["guarded"].append(time_ms(hook))
    for _ in range(ROUNDS):
        found["agree"].append(time_ms(agree_once))
    found["progress"] = [time_ms(lambda: progress(1, loss=0.5)) for _ in range(1000)]
    return found


def make_hook(optimizer: torch.optim.Optimizer) -> Any:
    """Return what the guard does before a step, without the step."""
    handle = guard(optimizer)
    hook = optimizer._optimizer_step_pre_hooks[handle.id]  # type: ignore[union-attr]
    return lambda: hook(optimizer, (), {})


def agree_once() -> None:
    with agree("round"):
        pass


def time_ms(action: Any) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


def simulate(rank: int, mail: Any, clients: int, size: int) -> None:
    """Be `clients` of `size` ranks that arrive one after another, on a few connections.

    The work of the store is the same as with a connection each; making 1,000 of them would measure
    name look-ups, some of which take seconds.
    """
    own = find_meetings()
    assert own is not None
    members = []
    stores = [own.board.store.clone() for _ in range(CONNECTIONS)]
    for number in range(rank * clients, (rank + 1) * clients):
        board = Board.__new__(Board)  # a client without the threads that wait and answer
        board.store = stores[number % CONNECTIONS]
        members.append(Meetings(World(number, size), board))
    mail.send("connected")
    while (number := mail.recv()) is not None:
        for member in members:
            arrive(member, number)
        for member in members:
            member.board.store.wait([f"{number}/verdict"], FOREVER)
            member.board.store.get(f"{number}/verdict")
        mail.send("done")


def arrive(member: Meetings, number: int) -> None:
    world = member.world
    meeting = Meeting(member, number, Arrival(world.rank, "agree `x`", "train.py:1 in main"), None)
    count, _ = meeting.come()
    if count == world.size:
        lines = member.board.find_lines(f"{number}/who")
        meeting.propose(conclude("agree `x`", map(Arrival.from_json, lines), world.size))


def measure_agreement(size: int) -> float:
    """Milliseconds of one agreement of `size` clients, the median of a few."""
    with ranks(PROCESSES, simulate, size // PROCESSES, size) as run:
        for rank in range(PROCESSES):
            assert run.receive(rank) == "connected"
        times = [time_ms(lambda number=number: meet_all(run, number)) for number in range(5)]
        for end in run.mail:
            end.send(None)
        run.answers()
    return statistics.median(times)


def meet_all(run: Any, number: int) -> None:
    for end in run.mail:
        end.send(number)
    for rank in range(PROCESSES):
        assert run.receive(rank) == "done"


def run() -> dict[str, Any]:
    """Measure everything; a JSON value."""
    answers = run_ranks(2, measure_library)
    assert all(answer.error is None for answer in answers), answers
    medians = {
        name: max(statistics.median(answer.value[name]) for answer in answers)
        for name in answers[0].value
    }
    found = {
        "preflight": medians["preflight"],
        "guard, over a bare all_reduce": medians["guarded"] - medians["bare"],
        "agree": medians["agree"],
    }
    agreements = {size: measure_agreement(size) for size in CLIENTS}
    (first, low), *_, (last, high) = agreements.items()
    return {
        "best_preflight_ms": round(min(min(a.value["preflight"]) for a in answers), 1),
        "ms": {name: round(value, 3) for name, value in found.items()},
        "limit_ms": LIMITS_MS,
        "bare_all_reduce_ms": round(medians["bare"], 3),
        "progress_us": round(medians["progress"] * 1e3, 2),
        "agreement_ms": {str(size): round(value, 1) for size, value in agreements.items()},
        "growth_us_per_rank": round((high - low) / (last - first) * 1e3, 1),
    }


def render(results: dict[str, Any]) -> str:
    rows = [("in-rank library, 2 ranks, 2,400 parameters", "median", "target")]
    for name, value in results["ms"].items():
        rows.append((name, f"{value:.2f} ms", f"<= {results['limit_ms'][name]:g} ms"))
    rows.append(("preflight, the best of nine", f"{results['best_preflight_ms']:.1f} ms", ""))
    rows.append(("a bare all_reduce of 4 integers", f"{results['bare_all_reduce_ms']:.2f} ms", ""))
    rows.append(("progress(step, loss=...)", f"{results['progress_us']:.1f} us", ""))
    for size, value in results["agreement_ms"].items():
        rows.append((f"agree, {size} clients in {PROCESSES} processes", f"{value:.1f} ms", ""))
    rows.append(("agree, growth", f"{results['growth_us_per_rank']:.0f} us a rank", ""))
    return "\n".join(f"{name:<46}{value:>14}  {limit}" for name, value, limit in rows)


def main() -> dict[str, Any]:
    results = run()
    print(render(results))
    return results


if __name__ == "__main__":
    main()
