"""From what every rank is about to train to what is wrong with it. Pure, and without torch.

All findings of all meshes are collected first; then there is one verdict for the whole world, so
that a rank outside the faulty mesh learns of it too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from puffrun.library.agreement.meeting_verdict import group_ranks
from puffrun.library.preflight.description import Description, ParamFacts
from puffrun.library.preflight.parameter_order import find_cycle, find_opposed, ranks_with
from puffrun.naming import name_ranks

MAX_NAMES = 3
MAX_FINDINGS = 12
ATTRIBUTES = {
    "shape": "shape",
    "dtype": "dtype",
    "requires_grad": "requires_grad",
    "mesh": "mesh",
    "placements": "placements",
    "group": "group",
    "aliases": "tied",
}
Key = tuple[str, tuple[int, ...] | None]  # a parameter's name and the ranks of its mesh
Holders = dict[Key, dict[int, ParamFacts]]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong. `ranks`: who differs from the majority, () if that is nobody."""

    kind: str
    text: str
    ranks: tuple[int, ...] = ()


def compare(descriptions: Mapping[int, Description]) -> list[Finding]:
    """Compare all ranks' descriptions; an empty list means that they may train together."""
    params = _find_holders({rank: d.params for rank, d in descriptions.items()})
    buffers = _find_holders({rank: d.buffers for rank, d in descriptions.items()})
    return [
        *_compare_names(descriptions),
        *_compare_presence(descriptions, params),
        *_compare_attributes(params),
        *_compare_hyperparameters(descriptions, params),
        *_compare_order(descriptions),
        *_compare_values(params, "parameter"),
        *_compare_values(buffers, "buffer"),
        *_compare_facts({rank: d.world for rank, d in descriptions.items()}),
        *_compare_facts({rank: d.same for rank, d in descriptions.items()}),
        *find_not_different({rank: d.differ for rank, d in descriptions.items()}),
    ]


def find_notes(descriptions: Mapping[int, Description]) -> list[str]:
    """Say what people should know of and what may be meant."""
    return [*_note_env(descriptions), *_note_stages(descriptions)]


def _note_env(descriptions: Mapping[int, Description]) -> list[str]:
    """Name the environment variables that differ; their values may be secrets."""
    names = {name for d in descriptions.values() for name in d.env}
    differ = [n for n in sorted(names) if len({d.env.get(n) for d in descriptions.values()}) > 1]
    return [f"not the same on all ranks: {', '.join(differ)} (environment)"] if differ else []


def _note_stages(descriptions: Mapping[int, Description]) -> list[str]:
    """Say that ranks were not compared because they have no name in common."""
    stages = [name_ranks(ranks) for stage, ranks in _list_stages(descriptions) if stage]
    if len(stages) < 2:  # noqa: PLR2004  # one alone is no pipeline
        return []
    told = some(sorted(stages), " | ")
    return [f"no parameter name in common, so taken for pipeline stages: {told}"]


def _find_holders(params: Mapping[int, Iterable[ParamFacts]]) -> Holders:
    holders: Holders = {}
    for rank, facts in params.items():
        for fact in facts:
            holders.setdefault((fact.name, fact.scope), {})[rank] = fact
    return holders


def _compare_names(descriptions: Mapping[int, Description]) -> list[Finding]:
    findings = []
    nameless = {rank: list(d.nameless) for rank, d in descriptions.items() if d.nameless}
    for places, ranks in group_ranks(nameless):
        text = f"no name for parameter {some(places)} of the optimizer on {name_ranks(ranks)}"
        findings.append(Finding("names", text, _minority(ranks, descriptions)))
    doubled = {rank: list(d.duplicates) for rank, d in descriptions.items() if d.duplicates}
    for names, ranks in group_ranks(doubled):
        text = f"two parameters are called {some(_quote(names))} on {name_ranks(ranks)}"
        findings.append(Finding("names", text, _minority(ranks, descriptions)))
    return findings


def _minority(ranks: Iterable[int], of: Mapping[int, Any]) -> tuple[int, ...]:
    chosen = tuple(ranks)
    return chosen if len(chosen) < len(of) else ()


def _quote(names: Iterable[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def some(items: list[str], between: str = ", ") -> str:
    """List the first few."""
    more = len(items) - MAX_NAMES
    return between.join(items[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _compare_presence(descriptions: Mapping[int, Description], params: Holders) -> list[Finding]:
    findings = []
    for (name, scope), holders in params.items():
        absent = [r for r in scope or () if r not in holders and r in descriptions]
        if absent:
            text = f"`{name}` is on {name_ranks(holders)}, not on {name_ranks(absent)} of its mesh"
            findings.append(Finding("missing", text, tuple(absent)))
    return _merge(findings) + _compare_stages(descriptions)


def _compare_stages(descriptions: Mapping[int, Description]) -> list[Finding]:
    """Take ranks without a common name for pipeline stages; others must have all in common."""
    stages = [(set(stage), ranks) for stage, ranks in _list_stages(descriptions) if stage]
    findings = []
    for index, (small, few) in enumerate(stages):
        for large, many in stages[index + 1 :]:
            if not small & large:
                continue
            for only, here, there in ((small - large, few, many), (large - small, many, few)):
                if only:
                    names = some(_quote(sorted(only)))
                    text = f"{names} on {name_ranks(here)}, not on {name_ranks(there)}"
                    findings.append(Finding("missing", text, tuple(few)))
    return findings


def _list_stages(descriptions: Mapping[int, Description]) -> list[tuple[list[str], list[int]]]:
    """Group the ranks by the names of their plain parameters."""
    return group_ranks({
        rank: sorted(p.name for p in d.params if p.scope is None)
        for rank, d in descriptions.items()
    })  # fmt: skip


def _merge(findings: list[Finding]) -> list[Finding]:
    """Cut a list that says the same of many parameters."""
    if len(findings) <= MAX_FINDINGS:
        return findings
    more = len(findings) - MAX_FINDINGS + 1
    rest = tuple(sorted({r for finding in findings for r in finding.ranks}))
    last = Finding(findings[0].kind, f"… and {more} more like these", rest)
    return [*findings[: MAX_FINDINGS - 1], last]


def _compare_attributes(params: Holders) -> list[Finding]:
    differences: dict[tuple[str, str, tuple[int, ...]], list[str]] = {}
    for (name, _), holders in params.items():
        first = next(iter(holders.values()))
        for attribute, kind in ATTRIBUTES.items():
            if all(getattr(p, attribute) == getattr(first, attribute) for p in holders.values()):
                continue
            told, ranks = tell_values({r: getattr(p, attribute) for r, p in holders.items()})
            differences.setdefault((kind, told, ranks), []).append(name)
    return [
        Finding(kind, f"{some(_quote(names))} is {told}", ranks)
        for (kind, told, ranks), names in differences.items()
    ]


def tell_values(values: Mapping[int, Any]) -> tuple[str, tuple[int, ...]]:
    """Say who has which value, the odd ones first; and who the odd ones are."""
    groups = group_ranks(values)
    told = ", ".join(f"{_show(value)} on {name_ranks(ranks)}" for value, ranks in groups)
    return told, tuple(sorted(rank for _, ranks in groups[:-1] for rank in ranks))


def _show(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(str, value))}]" if value else "none"
    return "absent" if value is None else str(value)


def _compare_hyperparameters(
    descriptions: Mapping[int, Description], params: Holders
) -> list[Finding]:
    seen: set[tuple[tuple[int, int | None], ...]] = set()
    findings: dict[str, Finding] = {}
    for holders in params.values():
        where = tuple((rank, fact.group) for rank, fact in holders.items())
        if where in seen:
            continue
        seen.add(where)
        groups = {rank: descriptions[rank].groups[g] for rank, g in where if g is not None}
        for key in sorted({key for group in groups.values() for key in group}):
            values = {rank: group.get(key) for rank, group in groups.items()}
            if len(group_ranks(values)) > 1:
                told, ranks = tell_values(values)
                text = f"{told} (optimizer group {where[0][1]})"
                findings[f"{key} {text}"] = Finding(key, text, ranks)
    return list(findings.values())


def _compare_order(descriptions: Mapping[int, Description]) -> list[Finding]:
    scopes = {r: {p.name: p.scope for p in d.params} for r, d in descriptions.items()}
    by_optimizer = {
        rank: [_node(name, scopes[rank].get(name)) for name in d.order]
        for rank, d in descriptions.items()
    }
    by_model = {r: [_node(p.name, p.scope) for p in d.params] for r, d in descriptions.items()}
    findings = _find_order(by_optimizer, "optimizer")
    return findings or _find_order(by_model, "model")


def _node(name: str, scope: tuple[int, ...] | None) -> str:
    return name if scope is None else f"{name}\0{scope}"


def _find_order(orders: dict[int, list[str]], whose: str) -> list[Finding]:
    cycle = find_cycle(orders)
    if cycle is None:
        return []
    opposed = find_opposed(orders, cycle)
    if opposed is None:
        pairs = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        steps = [
            f"`{_name(a)}` before `{_name(b)}` on {name_ranks(ranks_with(orders, a, b))}"
            for a, b in pairs
        ]
        return [Finding("order", f"a circle: {', '.join(steps)} ({whose})")]
    ways = {tuple(ranks_with(orders, *pair)): pair for pair in (opposed, opposed[::-1])}
    few, many = sorted(ways, key=lambda ranks: (len(ranks), -ranks[0]))
    first, second = map(_name, ways[few])
    text = f"`{first}` before `{second}` on {name_ranks(few)}, after it on {name_ranks(many)}"
    return [Finding("order", f"{text} ({whose})", few)]


def _name(node: str) -> str:
    return node.partition("\0")[0]


def _compare_values(params: Holders, noun: str) -> list[Finding]:
    differences: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (name, _), holders in params.items():
        for shard in {fact.shard for fact in holders.values()}:
            sums = {r: f.sum for r, f in holders.items() if f.shard == shard and f.sum}
            if len(set(sums.values())) > 1:
                groups = group_ranks(sums)
                odd = tuple(sorted(rank for _, ranks in groups[:-1] for rank in ranks))
                others = name_ranks(groups[-1][1])
                differences.setdefault((others, odd), []).append(name)
    return [
        Finding("values", f"{noun} {some(_quote(n))} on {name_ranks(odd)} not as on {others}", odd)
        for (others, odd), n in differences.items()
    ]


def _compare_facts(facts: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    findings = []
    for key in sorted({key for fact in facts.values() for key in fact}):
        values = {rank: fact.get(key) for rank, fact in facts.items()}
        if len(group_ranks(values)) > 1:
            told, ranks = tell_values(values)
            findings.append(Finding(key, told, ranks))
    return _merge(findings)


def find_not_different(facts: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Find what has to be different on every rank and is not: then all read the same data."""
    findings = []
    for key in sorted({key for fact in facts.values() for key in fact}):
        for value, ranks in group_ranks({r: f[key] for r, f in facts.items() if key in f}):
            if len(ranks) > 1:
                findings.append(Finding(key, f"{_show(value)} on all of {name_ranks(ranks)}"))
    return findings


FIXES = {
    "order": "build the optimizer from `model.named_parameters()` in one order on all ranks",
    "names": "build the optimizer from `model.named_parameters()`, so that each has its own name",
    "values": "load or broadcast the same weights on all ranks first",
    "missing": "build the same model on all ranks, or pass `group=` when these are stages of one",
}


def render(findings: list[Finding], ranks: Iterable[int], at: str = "") -> str:
    """Draw the findings; the first line says who differs from whom, and `at` which step."""
    odd = sorted({rank for finding in findings for rank in finding.ranks})
    rest = [rank for rank in ranks if rank not in odd]
    if odd and rest:
        verb = "differs" if len(odd) == 1 else "differ"
        head = f"{name_ranks(odd)} {verb} from {name_ranks(rest)}"
    else:
        head = "the ranks cannot train together"
    head += f" at {at}" if at else ""
    width = max(10, *(len(finding.kind) for finding in findings)) + 1
    lines = [f"  {finding.kind:<{width}}{finding.text}" for finding in findings[:MAX_FINDINGS]]
    if len(findings) > MAX_FINDINGS:
        lines.append(f"  … and {len(findings) - MAX_FINDINGS} more")
    fixes = [FIXES[kind] for kind in FIXES if any(f.kind == kind for f in findings)]
    return "\n".join([head, *lines, "  nothing was changed" + "".join(f"; {f}" for f in fixes[:1])])
