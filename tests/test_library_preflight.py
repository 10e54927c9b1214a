"""Preflight and guard on real gloo ranks: right on every rank, nothing changed, no hang."""

import json
import re

import pytest
from ranks import Answer, join_gloo, run_ranks, torch
from torch import nn
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard
from torch.optim import SGD, AdamW, Muon

from puffrun import DisagreementError, guard, preflight

SIZE = 3


class Case:
    """A model and an optimizer as one rank has them, and the tensors that must not change."""

    def __init__(self, model, optimizer, **options):
        self.model, self.optimizer, self.options = model, optimizer, options


def tensor_of(shape=(4, 4), fill=1.0, dtype=torch.float32, **facts):
    return nn.Parameter(torch.full(shape, fill, dtype=dtype), **facts)


def model_of(**parameters):
    model = nn.Module()
    for name, parameter in parameters.items():
        model.register_parameter(name, parameter)
    return model


def named(optimizer=SGD, *, lr=0.1, **parameters):
    """An optimizer built from names, in this order, without a model."""
    return Case(None, optimizer(list(parameters.items()), lr=lr))


def swapped(rank, shape_b=(4, 4)):
    parameters = {"a": tensor_of(fill=1.0), "b": tensor_of(shape_b, fill=100.0)}
    return dict(reversed(parameters.items())) if rank == 1 else parameters


def on_mesh(mesh, fill=1.0, placement=None):
    local = torch.full((2, 4), fill)
    return nn.Parameter(DTensor.from_local(local, mesh, [placement or Shard(0)], run_check=False))


def meshed(rank, meshes, *orders):
    """Each rank registers its own names in its own order; `meshes` says where a name lives."""
    return named(**{name: on_mesh(meshes[m]) for name, m in orders[rank]})


def case_swap_equal_shapes(rank, meshes):
    return named(**swapped(rank))


def case_swap_different_shapes(rank, meshes):
    return named(Muon, **swapped(rank, shape_b=(8, 2)))


def case_swap_in_model(rank, meshes):
    model = model_of(**swapped(rank))
    return Case(model, AdamW(model.parameters()))


def case_swap_across_meshes(rank, meshes):
    a, b = ("a", (0, 1)), ("b", (0, 1, 2))
    return meshed(rank, meshes, [a, b], [b, a], [b])


def case_overlapping_meshes_correct(rank, meshes):
    a, b, c = ("a", (0, 1)), ("b", (0, 1)), ("c", (1, 2))
    return meshed(rank, meshes, [a, b], [c, a, b], [c])


def case_overlapping_meshes_wrong(rank, meshes):
    a, b, c = ("a", (0, 1)), ("b", (0, 1)), ("c", (1, 2))
    return meshed(rank, meshes, [a, b], [c, b, a], [c])


def case_cycle_of_three(rank, meshes):
    x, y, z = ("x", (0, 2)), ("y", (0, 1)), ("z", (1, 2))
    return meshed(rank, meshes, [x, y], [y, z], [z, x])


def case_bare_equal_shapes(rank, meshes):
    return Case(None, SGD([tensor_of(), tensor_of()], lr=0.1))


def case_bare_different_shapes(rank, meshes):
    return Case(None, SGD([tensor_of(), tensor_of((8, 2))], lr=0.1))


def case_bare_but_in_the_model(rank, meshes):
    model = model_of(a=tensor_of(), b=tensor_of())
    return Case(model, SGD(model.parameters(), lr=0.1))


def case_positional_names(rank, meshes):
    return Case(None, SGD([("param_0", tensor_of()), ("param_1", tensor_of())], lr=0.1))


def case_duplicate_names_on_one_rank(rank, meshes):
    names = ("a", "a" if rank == 1 else "b")
    return Case(None, SGD([(name, tensor_of()) for name in names], lr=0.1))


def case_dtype(rank, meshes):
    return named(a=tensor_of(dtype=torch.float64 if rank == 2 else torch.float32))


def case_requires_grad(rank, meshes):
    model = model_of(a=tensor_of(), b=tensor_of(requires_grad=rank != 0))
    return Case(model, SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))


def case_hyperparameter(rank, meshes):
    return named(lr=0.2 if rank == 1 else 0.1, a=tensor_of())


def case_tied(rank, meshes):
    shared = tensor_of()
    model = model_of(embed=shared, head=shared)
    return Case(model, SGD(model.parameters(), lr=0.1))


def case_tied_on_one_rank_only(rank, meshes):
    shared = tensor_of()
    model = model_of(embed=shared, head=shared if rank == 1 else tensor_of())
    return Case(model, None)


def case_values(rank, meshes):
    return named(a=tensor_of(), b=tensor_of(fill=1.0 + (rank == 1) * 1e-6))


def case_values_not_asked(rank, meshes):
    return Case(model_of(a=tensor_of(fill=float(rank))), None, values=False)


def case_buffer(rank, meshes):
    model = model_of(a=tensor_of())
    model.register_buffer("mean", torch.full((3,), float(rank == 2)))
    return Case(model, None)


def case_replicated_dtensor_values(rank, meshes):
    mesh = meshes[0, 1, 2]
    return named(a=on_mesh(mesh, fill=float(rank == 1), placement=Replicate()))


def case_sharded_dtensor_values(rank, meshes):
    return named(a=on_mesh(meshes[0, 1, 2], fill=float(rank)))


def case_placements(rank, meshes):
    placement = Replicate() if rank == 1 else Shard(0)
    local = torch.ones(6 if rank == 1 else 2, 4)
    tensor = DTensor.from_local(local, meshes[0, 1, 2], [placement], run_check=False)
    return Case(None, SGD([("a", nn.Parameter(tensor))], lr=0.1))


def case_pipeline_stages(rank, meshes):
    stage = {f"layers.{rank}.{name}": tensor_of((rank + 2, 4)) for name in ("weight", "bias")}
    return Case(None, SGD(list(stage.items()), lr=0.1 * (rank + 1)))


def case_pipeline_stages_with_equal_names(rank, meshes):
    model = model_of(weight=tensor_of((rank + 2, 4)))
    return Case(model, SGD(model.parameters(), lr=0.1), group=[rank])


def case_missing_parameter(rank, meshes):
    return named(a=tensor_of(), **({} if rank == 1 else {"b": tensor_of()}))


def case_same_facts_differ(rank, meshes):
    return Case(model_of(a=tensor_of()), None, same={"batch size": 64 - (rank == 2)})


def case_sampler_seeds_equal(rank, meshes):
    return Case(model_of(a=tensor_of()), None, differ={"sampler seed": 7})


ACCEPTED = None
CASES = {
    case_swap_equal_shapes: "order      `b` before `a` on rank 1, after it on ranks 0, 2",
    case_swap_different_shapes: "order      `b` before `a` on rank 1, after it on ranks 0, 2",
    case_swap_in_model: "rank 1 differs from ranks 0, 2",
    case_swap_across_meshes: "order      `b` before `a` on rank 1, after it on rank 0",
    case_overlapping_meshes_correct: ACCEPTED,
    case_overlapping_meshes_wrong: "order      `b` before `a` on rank 1, after it on rank 0",
    case_cycle_of_three: "`y` before `z` on rank 1",
    case_bare_equal_shapes: "build the optimizer from `model.named_parameters()`",
    case_bare_different_shapes: "build the optimizer from `model.named_parameters()`",
    case_bare_but_in_the_model: ACCEPTED,
    case_positional_names: "build the optimizer from `model.named_parameters()`",
    case_duplicate_names_on_one_rank: "two parameters are called `a` on rank 1",
    case_dtype: "dtype      `a` is float64 on rank 2, float32 on ranks 0, 1",
    case_requires_grad: "`b` is False on rank 0, True on ranks 1, 2",
    case_hyperparameter: "lr         0.2 on rank 1, 0.1 on ranks 0, 2 (optimizer group 0)",
    case_tied: ACCEPTED,
    case_tied_on_one_rank_only: "rank 1 differs from ranks 0, 2",
    case_values: "values     parameter `b` on rank 1 not as on ranks 0, 2",
    case_values_not_asked: ACCEPTED,
    case_buffer: "values     buffer `mean` on rank 2 not as on ranks 0, 1",
    case_replicated_dtensor_values: "values     parameter `a` on rank 1 not as on ranks 0, 2",
    case_sharded_dtensor_values: ACCEPTED,
    case_placements: "rank 1 differs from ranks 0, 2",
    case_pipeline_stages: ACCEPTED,
    case_pipeline_stages_with_equal_names: ACCEPTED,
    case_missing_parameter: "missing    `b` on ranks 0, 2, not on rank 1",
    case_same_facts_differ: "batch size 63 on rank 2, 64 on ranks 0, 1",
    case_sampler_seeds_equal: "sampler seed 7 on all of ranks 0-2",
}


def make_meshes():
    """All ranks make all meshes, in one order, as `init_device_mesh` would."""
    return {ranks: DeviceMesh("cpu", list(ranks)) for ranks in ((0, 1), (1, 2), (0, 2), (0, 1, 2))}


def list_tensors(case):
    groups = case.optimizer.param_groups if case.optimizer else []
    parameters = [p for group in groups for p in group["params"]]
    if case.model is not None:
        parameters += [*case.model.parameters(), *case.model.buffers()]
    return [p.to_local() if isinstance(p, DTensor) else p for p in parameters]


def check_cases(rank, mail):
    join_gloo()
    meshes = make_meshes()
    said = {}
    for make_case in CASES:
        case = make_case(rank, meshes)
        before = [tensor.detach().clone() for tensor in list_tensors(case)]
        try:
            preflight(case.model, case.optimizer, timeout_s=20, **case.options)
            said[make_case.__name__] = ACCEPTED
        except DisagreementError as error:
            said[make_case.__name__] = str(error)
        after = [tensor.detach() for tensor in list_tensors(case)]
        assert all(map(torch.equal, before, after)), f"{make_case.__name__} changed a parameter"
    return said


@pytest.fixture(scope="module")
def matrix() -> list[Answer]:
    return run_ranks(SIZE, check_cases)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.removeprefix("case_"))
def test_preflight(matrix, case):
    said = [(answer.value or {}).get(case.__name__, answer.error) for answer in matrix]
    assert len(set(said)) == 1, said
    if CASES[case] is ACCEPTED:
        assert said[0] is ACCEPTED
    else:
        assert said[0].startswith("preflight: ")
        assert CASES[case] in said[0]
        assert "nothing was changed" in said[0]


def step_with(rank, *, missing=None, lr=None, mesh=None):
    """Three good steps, then one in which rank 1 differs; returns what it said, and the values."""
    model = model_of(a=tensor_of(), b=tensor_of(fill=2.0))
    optimizer = AdamW(model.named_parameters(), lr=0.1)
    handle = guard(optimizer, model, timeout_s=10)
    said = None
    for step in range(1, 5):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.ones_like(parameter)
            if step == 4 and rank == 1 and name == missing:
                parameter.grad = None
        if step == 4 and rank == 1 and lr is not None:
            optimizer.param_groups[0]["lr"] = lr
        before = [p.detach().clone() for p in model.parameters()]
        try:
            optimizer.step()
        except DisagreementError as error:
            said = str(error)
            assert all(map(torch.equal, before, model.parameters())), "a step changed something"
        else:
            assert not torch.equal(before[0], model.a)
    handle.remove()
    return said


def guard_cases(rank, mail):
    join_gloo()
    said = {
        "good": step_with(rank),
        "gradient": step_with(rank, missing="b"),
        "lr": step_with(rank, lr=0.5),
        "overlap": step_on_overlapping_meshes(rank, missing=False),
        "overlap-missing": step_on_overlapping_meshes(rank, missing=True),
        "stages": step_in_stages(rank),
        "bare": None,
    }
    try:
        guard(SGD([tensor_of(), tensor_of()], lr=0.1))
    except DisagreementError as error:
        said["bare"] = str(error)
    return said


def step_on_overlapping_meshes(rank, *, missing):
    meshes = make_meshes()
    a, b, c = ("a", (0, 1)), ("b", (0, 1)), ("c", (1, 2))
    case = meshed(rank, meshes, [a, b], [c, a, b], [c])
    guard(case.optimizer)
    for name, parameter in zip(
        case.optimizer.param_groups[0]["param_names"], case.optimizer.param_groups[0]["params"],
        strict=True,
    ):  # fmt: skip
        if not (missing and rank == 0 and name == "b"):
            parameter.grad = torch.ones_like(parameter)
    try:
        case.optimizer.step()
    except DisagreementError as error:
        return str(error)
    return None


def step_in_stages(rank):
    case = case_pipeline_stages(rank, {})
    guard(case.optimizer)
    for parameter in case.optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter) if rank else None
    case.optimizer.step()  # a stage without gradients is that stage's own affair


def test_guard_compares_each_step_before_it_changes_anything():
    answers = run_ranks(SIZE, guard_cases)
    said = [json.dumps(answer.value or answer.error, sort_keys=True) for answer in answers]
    assert len(set(said)) == 1, said
    told = answers[0].value
    assert told["good"] is told["overlap"] is told["stages"] is None
    assert "guard: rank 1 differs from ranks 0, 2 at step 4" in told["gradient"]
    assert "gradient   `b` none on rank 1, there on ranks 0, 2" in told["gradient"]
    assert "lr         0.5 on rank 1, 0.1 on ranks 0, 2 (optimizer group 0)" in told["lr"]
    assert "gradient   `b` none on rank" in told["overlap-missing"]
    assert "build the optimizer from `model.named_parameters()`" in told["bare"]


def skip_a_step(rank, mail):
    join_gloo()
    model = model_of(a=tensor_of())
    optimizer = SGD(model.parameters(), lr=0.1)
    guard(optimizer, model, timeout_s=2)
    model.a.grad = torch.ones_like(model.a)
    optimizer.step()
    if rank == 1:
        mail.recv()  # as a rank that skips a step because its loss is infinite
        return "skipped"
    optimizer.step()
    return None


def test_a_rank_that_does_not_step_is_named(monkeypatch):
    from ranks import ranks

    with ranks(2, skip_a_step) as run:
        error = run.receive(0)
        assert error.type == "DisagreementError"
        waited = re.match(r"guard, at step 2: rank 1 did not come within (.*) s\n", error.error)
        assert waited, error.error
        assert float(waited[1]) >= 4.9, "the step's own limit, and then the one of the meeting"
        assert "rank 1 is at" in error.error
        assert "in skip_a_step" in error.error


def step_muon(rank, mail, options):
    import importlib.util

    from harness import PROGRAMS

    spec = importlib.util.spec_from_file_location("rank_muon", PROGRAMS / "rank_muon.py")
    muon = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(muon)
    join_gloo()
    return muon.train(rank, **options)


def test_a_sharded_muon_goes_wrong_silently_and_is_refused_with_the_guard():
    right = run_ranks(2, step_muon, {"swapped": False, "guarded": True})
    silent = run_ranks(2, step_muon, {"swapped": True, "guarded": False})
    refused = run_ranks(2, step_muon, {"swapped": True, "guarded": True})
    assert [answer.error for answer in (*right, *silent)] == [None] * 4
    assert silent[0].value != right[0].value, "exit code 0 and wrong numbers"
    said = {answer.error for answer in refused}
    assert len(said) == 1
    assert "order      `b` before `a` on rank 1, after it on rank 0" in said.pop()
