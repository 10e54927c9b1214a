"""What one rank is about to train, as plain values that can be compared with another rank's."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from puffrun.library.preflight.checksum import sum_tensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer

# what an optimizer calls parameters that it got without names
POSITIONAL = re.compile(r"(param|group_\d+_param)?_?\d+")
IDENTITY_KEYS = ("params", "param_names")
UNEVEN = -1  # the size of a nested tensor: it has none
OWN_FIELDS = 2  # shard and sum, at the end of ParamFacts


class ParamFacts(NamedTuple):
    """One parameter. `scope`: the ranks that hold it together, None: as the model's other ones.

    `sum` is a checksum of this rank's part of the values, comparable within one `shard`. A tuple,
    because there are thousands and JSON takes tuples as they are; the last two are `OWN_FIELDS`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    scope: tuple[int, ...] | None = None
    mesh: str = ""
    placements: str = ""
    group: int | None = None
    aliases: tuple[str, ...] = ()
    shard: str = ""
    sum: str = ""


@dataclass(frozen=True)
class Description:
    """All of one rank. `groups` are the optimizer's hyperparameters, `order` its registration."""

    params: tuple[ParamFacts, ...] = ()
    buffers: tuple[ParamFacts, ...] = ()
    order: tuple[str, ...] = ()
    groups: tuple[dict[str, Any], ...] = ()
    nameless: tuple[str, ...] = ()
    duplicates: tuple[str, ...] = ()
    world: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    same: dict[str, Any] = field(default_factory=dict)
    differ: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Write it the same way on every rank."""
        return _dump(vars(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Description":
        """Read it from JSON."""
        fields = json.loads(text)
        for name in ("params", "buffers"):
            fields[name] = tuple(_param_from_json(*entry) for entry in fields[name])
        for name in ("order", "groups", "nameless", "duplicates"):
            fields[name] = tuple(fields[name])
        return cls(**fields)

    def digests(self) -> tuple[str, str]:
        """Hash what ranks with the same parameters have in common, and then all of it."""
        common = {
            **vars(self),
            "params": [facts[:-OWN_FIELDS] for facts in self.params],
            "buffers": [facts[:-OWN_FIELDS] for facts in self.buffers],
            "differ": None,
        }
        own = [facts[-OWN_FIELDS:] for facts in (*self.params, *self.buffers)]
        structure = hashlib.blake2b(_dump(common).encode(), digest_size=16)
        everything = structure.copy()
        everything.update(_dump([own, self.differ]).encode())
        return structure.hexdigest(), everything.hexdigest()


def _dump(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _param_from_json(*fields: Any) -> ParamFacts:
    return ParamFacts._make(tuple(f) if isinstance(f, list) else f for f in fields)


def name_parameters(
    model: "nn.Module | None", optimizer: "Optimizer | None"
) -> dict[int, list[str]]:
    """Map `id(parameter)` to its qualified names: the model's, else the optimizer's own."""
    names: dict[int, list[str]] = {}
    if model is not None:
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(_unwrap(name))
    for group in optimizer.param_groups if optimizer is not None else ():
        for name, parameter in zip(group.get("param_names", ()), group["params"], strict=False):
            if id(parameter) not in names and not POSITIONAL.fullmatch(name):
                names[id(parameter)] = [name]
    return names


def _unwrap(name: str) -> str:
    """Drop what wrappers (torch.compile, checkpointing, FSDP) put into a name."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def describe_training(
    model: "nn.Module | None",
    optimizer: "Optimizer | None",
    names: dict[int, list[str]],
    scope: Sequence[int] | None,
    *,
    values: bool,
) -> Description:
    """Describe the model's and the optimizer's parameters; reads only."""
    groups = _index_groups(optimizer)
    ours = list(_list_parameters(model, optimizer))
    plain = None if scope is None else tuple(sorted(scope))
    params = [
        describe_tensor(names[id(p)], p, plain, groups.get(id(p)), values=values)
        for p in ours
        if id(p) in names
    ]
    return Description(
        params=tuple(params),
        buffers=tuple(_describe_buffers(model, plain, values=values)),
        order=tuple(names[key][0] for key in groups if key in names),
        groups=tuple(
            list_hyperparameters(g) for g in (optimizer.param_groups if optimizer else ())
        ),
        nameless=tuple(_name_place(optimizer, p) for p in ours if id(p) not in names),
        duplicates=_find_duplicates(params),
    )


def _list_parameters(
    model: "nn.Module | None", optimizer: "Optimizer | None"
) -> "Iterator[Tensor]":
    """List each parameter once: the model's, then those only the optimizer has."""
    seen: set[int] = set()
    sources: list[Iterable[Tensor]] = [] if model is None else [model.parameters()]
    sources += [group["params"] for group in (optimizer.param_groups if optimizer else ())]
    for source in sources:
        for parameter in source:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def _index_groups(optimizer: "Optimizer | None") -> dict[int, int]:
    """Map `id(parameter)` to its group's index, in the order of registration."""
    groups = optimizer.param_groups if optimizer is not None else []
    return {id(p): index for index, group in enumerate(groups) for p in group["params"]}


def _name_place(optimizer: "Optimizer | None", parameter: "Tensor") -> str:
    for index, group in enumerate(optimizer.param_groups if optimizer is not None else ()):
        for place, other in enumerate(group["params"]):
            if other is parameter:
                return f"number {place} of group {index}, {list(parameter.shape)}"
    return f"{list(parameter.shape)}"


def _find_duplicates(params: list[ParamFacts]) -> tuple[str, ...]:
    counts = Counter(facts.name for facts in params)
    return tuple(sorted(name for name, count in counts.items() if count > 1))


def list_hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """Take all of an optimizer's group but the parameters, as JSON has it."""
    return {key: _plain(value) for key, value in group.items() if key not in IDENTITY_KEYS}


def _plain(value: Any) -> Any:
    """Turn a hyperparameter into JSON; a tensor (lr on a GPU) into its number."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    number = _find_number(value)
    return f"{type(value).__module__}.{type(value).__qualname__}" if number is None else number


def _find_number(value: Any) -> bool | float | str | None:
    """Take the one number of a tensor or of an array library's scalar; None when it has none."""
    try:
        number = value.item() if hasattr(value, "item") else value
    except (RuntimeError, TypeError, ValueError):  # several numbers, or none that can be read
        return None
    if isinstance(number, complex):
        return repr(number)
    return number if isinstance(number, (bool, int, float, str)) else None


def list_facts(argument: str, facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """Take facts of the program's own as JSON has them; the values are what is compared.

    Raises:
        TypeError: a value is of a type that cannot be compared across ranks.
    """
    return {str(k): _take_fact(f"{argument}[{k!r}]", v) for k, v in dict(facts or {}).items()}


def _take_fact(place: str, value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_take_fact(f"{place}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(k): _take_fact(f"{place}[{k!r}]", item) for k, item in value.items()}
    if isinstance(value, PurePath):
        return str(value)
    number = _find_number(value)
    if number is None:
        raise TypeError(
            f"{place} is a {type(value).__qualname__}: give numbers, text, lists or dicts"
        )
    return number


def find_scope(tensor: Any) -> tuple[int, ...] | None:
    """Find the ranks of a DTensor's mesh; None for a plain tensor."""
    if not _is_distributed(tensor.__class__):
        return None
    return tuple(sorted(tensor.device_mesh.mesh.flatten().tolist()))


@cache
def _is_distributed(kind: Any) -> bool:
    """Whether tensors of this type are DTensors; looking at thousands of tensors is slow."""
    return hasattr(kind, "device_mesh")


@cache
def _name_dtype(dtype: "torch.dtype") -> str:
    return str(dtype).removeprefix("torch.")


def describe_tensor(
    names: Sequence[str],
    tensor: Any,
    scope: tuple[int, ...] | None,
    group: int | None,
    *,
    values: bool,
) -> ParamFacts:
    """Describe one parameter or buffer; of a DTensor the mesh is its scope."""
    mesh = placements = shard = ""
    local = tensor
    if _is_distributed(tensor.__class__):
        device_mesh = tensor.device_mesh
        scope = find_scope(tensor)
        mesh = f"{list(device_mesh.mesh_dim_names or [])} {device_mesh.mesh.tolist()}"
        placements = str(list(tensor.placements))
        shard = _name_shard(tensor)
        local = tensor.to_local()
    return ParamFacts(
        name=names[0],
        shape=(UNEVEN,) * tensor.dim() if tensor.is_nested else tuple(tensor.shape),
        dtype=_name_dtype(tensor.dtype),
        requires_grad=tensor.requires_grad,
        scope=scope,
        mesh=mesh,
        placements=placements,
        shard=shard,
        group=group,
        aliases=tuple(sorted(names[1:])),
        sum=sum_tensor(local) if values and "P" not in shard else "",
    )


def _name_shard(tensor: Any) -> str:
    """Name this rank's part: its coordinates in the sharded dimensions of the mesh."""
    coordinates = tensor.device_mesh.get_coordinate() or []
    parts = []
    for placement, coordinate in zip(tensor.placements, coordinates, strict=False):
        if placement.is_partial():
            parts.append("P")
        elif not placement.is_replicate():
            parts.append(str(coordinate))
        else:
            parts.append("r")
    return ",".join(parts)


def _describe_buffers(
    model: "nn.Module | None", scope: tuple[int, ...] | None, *, values: bool
) -> "Iterator[ParamFacts]":
    if model is None:
        return
    kept = model.state_dict(keep_vars=True).keys()  # persistent ones only
    for name, buffer in model.named_buffers():
        if name in kept:
            yield describe_tensor([_unwrap(name)], buffer, scope, None, values=values)
