"""Preflight of what is rare: tensors without memory, odd facts, ranks that cannot be described."""

from pathlib import Path

import pytest
from ranks import Answer, join_gloo, run_ranks, torch
from test_library_preflight import SIZE, model_of, tensor_of
from torch import nn

from puffrun import DisagreementError, preflight


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, as quantised ones are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        plain = [a.inner if isinstance(a, Wrapper) else a for a in args]
        out = function(*plain, **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


class Flat(Wrapper):
    """One that tells its parts."""

    def __tensor_flatten__(self):
        return ["inner"], None


def of_tensor(make):
    """Preflight a model with this tensor as a parameter, or as a buffer."""

    def run(rank):
        model = nn.Module()
        tensor = make(rank)
        if isinstance(tensor, nn.Parameter):
            model.register_parameter("a", tensor)
        else:
            model.register_buffer("a", tensor)
        preflight(model, timeout_s=20)

    return run


def of_facts(**make):
    return lambda rank: preflight(
        timeout_s=20, **{name: {"x": value(rank)} for name, value in make.items()}
    )


def of_outsider(rank):
    """What `new_group([0, 1])` gives to the ranks outside."""
    group = torch.distributed.new_group([0, 1])
    assert isinstance(group, int) == (rank == 2)
    preflight(model_of(a=tensor_of()), timeout_s=20, group=group)


def of_lazy(rank):
    preflight(nn.LazyLinear(3) if rank == 1 else nn.Linear(3, 3), timeout_s=20)


def a_complex(rank):
    tensor = torch.full((3,), 1 + 2j)
    return tensor.conj() if rank == 1 else tensor


VALUES = "values     buffer `a` on rank 1 not as on ranks 0, 2"
ODD = {
    "wrapper": (of_tensor(lambda rank: Wrapper(torch.full((3,), float(rank)))), None),
    "wrapper as parameter": (of_tensor(lambda _: nn.Parameter(Wrapper(torch.ones(3)))), None),
    "parts": (of_tensor(lambda _: Flat(torch.ones(3))), None),
    "parts differ": (of_tensor(lambda rank: Flat(torch.full((3,), float(rank == 1)))), VALUES),
    "conjugate": (of_tensor(a_complex), VALUES),
    "conjugate of all": (of_tensor(lambda _: torch.full((3,), 1 + 2j).conj().imag), None),
    "nested": (of_tensor(lambda r: torch.nested.nested_tensor([torch.ones(r + 1)])), None),
    "jagged": (
        of_tensor(lambda r: torch.nested.nested_tensor([torch.ones(r + 1)], layout=torch.jagged)),
        None,
    ),
    "outsider": (of_outsider, None),
    "lazy": (of_lazy, "preflight: rank 1 failed: "),
    "bad group": (
        lambda rank: preflight(group=[0, 1, "2" if rank == 1 else 2], timeout_s=20),
        "preflight: rank 1 failed: TypeError",
    ),
    "no group": (
        lambda rank: preflight(group=7 if rank == 1 else None, timeout_s=20),
        "TypeError: group has to be a process group or a list of ranks, not 7",
    ),
    "tensor": (of_facts(same=lambda _: torch.tensor(3)), None),
    "tensor differs": (of_facts(same=lambda r: torch.tensor(3 + (r == 1))), "4 on rank 1, 3 on"),
    "lists": (of_facts(same=lambda _: {"a": (1, [Path("b")], 1j)}), None),
    "sets": (of_facts(same=lambda r: {3} if r == 1 else 3), "same['x'] is a set: give numbers"),
    "seeds": (of_facts(differ=torch.tensor), None),
    "vector": (of_facts(differ=lambda _: torch.ones(2)), "differ['x'] is a Tensor: give numbers"),
}


def check_odd(rank, mail):
    join_gloo()
    said = {}
    for name, (run, _) in ODD.items():
        try:
            run(rank)
        except DisagreementError as error:
            said[name] = str(error)
        assert "did not come" not in said.get(name, ""), "waited for a rank that had failed"
    return said


@pytest.fixture(scope="module")
def odd() -> list[Answer]:
    return run_ranks(SIZE, check_odd)


@pytest.mark.parametrize("name", ODD)
def test_odd_tensors_and_facts(odd, name):
    assert [answer.error for answer in odd] == [None] * SIZE, odd[0]
    said = [answer.value.get(name) for answer in odd]
    assert len(set(said)) == 1, said
    expected = ODD[name][1]
    if expected is None:
        assert said[0] is None
    else:
        assert said[0] is not None
        assert expected in said[0]
