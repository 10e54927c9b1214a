"""Is there one order of all parameters that every rank's order is a part of?

There is, iff the union of all ranks' edges "comes right before" has no cycle. Absolute positions
reject correct programs (with overlapping meshes a parameter is first on one rank and third on
another), and comparing pairs of ranks misses x<y, y<z, z<x on three ranks. Pure.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

Node = str
Edges = dict[Node, dict[Node, list[int]]]


def find_cycle(orders: Mapping[int, Sequence[Node]]) -> list[Node] | None:
    """Find a cycle in the union of the orders: [a, b, c] for a before b before c before a."""
    edges = _collect_edges(orders)
    indegree = dict.fromkeys(edges, 0)
    for targets in edges.values():
        for target in targets:
            indegree[target] += 1
    free = [node for node, count in indegree.items() if count == 0]
    while free:  # Kahn: take away what nothing comes before
        for target in edges[free.pop()]:
            indegree[target] -= 1
            if indegree[target] == 0:
                free.append(target)
    left = {node for node, count in indegree.items() if count > 0}
    return _walk(edges, left) if left else None


def _collect_edges(orders: Mapping[int, Sequence[Node]]) -> Edges:
    edges: Edges = {}
    for rank, order in orders.items():
        for node in order:
            edges.setdefault(node, {})
        for before, after in pairwise(order):
            edges[before].setdefault(after, []).append(rank)
    return edges


def _walk(edges: Edges, left: set[Node]) -> list[Node]:
    """Walk backwards inside what is left (each has a predecessor there) until a node repeats."""
    before: dict[Node, Node] = {}
    for node in sorted(left):
        for target in edges[node]:
            if target in left:
                before.setdefault(target, node)
    node = min(left)
    path: list[Node] = []
    while node not in path:
        path.append(node)
        node = before[node]
    return path[path.index(node) :][::-1]


def find_opposed(
    orders: Mapping[int, Sequence[Node]], cycle: Sequence[Node]
) -> tuple[Node, Node] | None:
    """Find two of a cycle's nodes that two ranks have in opposite orders; a long cycle has none."""
    places = [
        {node: order.index(node) for node in cycle if node in order} for order in orders.values()
    ]
    for index, first in enumerate(cycle):
        for second in cycle[index + 1 :]:
            ways = {p[first] < p[second] for p in places if first in p and second in p}
            if len(ways) > 1:
                return first, second
    return None


def ranks_with(orders: Mapping[int, Sequence[Node]], first: Node, second: Node) -> list[int]:
    """Which ranks have both nodes, `first` before `second`."""
    return [
        rank
        for rank, order in orders.items()
        if first in order and second in order and order.index(first) < order.index(second)
    ]
