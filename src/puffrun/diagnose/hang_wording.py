"""The words of the verdict: ranks, operations, one or several."""

from collections.abc import Sequence

from puffrun.diagnose.waits import Wait
from puffrun.naming import name_ranks

_PLURAL = {
    "is": "are",
    "has": "have",
    "its": "their",
    "it": "they",
    "waits": "wait",
    "sleeps": "sleep",
    "holds": "hold",
    "computes": "compute",
    "raises": "raise",
    "reads": "read",
    "writes": "write",
}


def render_op(wait: Wait, world_size: int, *, with_shapes: bool = False) -> str:
    """Render `all_reduce #5 of [4] (gloo, all ranks)`; what is not known is left out."""
    number = "" if wait.seq is None else f" #{wait.seq}"
    shapes = f" of {render_shapes(wait.shapes)}" if with_shapes and wait.shapes else ""
    who = ""
    if wait.members and wait.seq is not None:
        is_all = len(wait.members) == world_size
        who = "all ranks" if is_all else f"group of {name_ranks(wait.members)}"
    about = ", ".join(part for part in (wait.backend, who) if part)
    return f"{wait.op}{number}{shapes}" + (f" ({about})" if about else "")


def render_shapes(shapes: Sequence[Sequence[int]]) -> str:
    """Render `[4], [8, 2]`."""
    return ", ".join(f"[{', '.join(map(str, shape))}]" for shape in shapes)


def conjugate(line: str, ranks: Sequence[int]) -> str:
    """Turn what one rank does into what several do: the first word, and each `it` and `its`."""
    if len(ranks) == 1:
        return line
    first, gap, rest = line.partition(" ")
    words = [_PLURAL[word] if word in ("it", "its", "has") else word for word in rest.split(" ")]
    return _PLURAL.get(first, first) + gap + " ".join(words)
