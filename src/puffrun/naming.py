"""How ranks are named wherever people read of them."""

from collections.abc import Iterable

MAX_PARTS = 8
SHORTEST_SPAN = 3


def name_ranks(ranks: Iterable[int]) -> str:
    """Name ranks: `rank 1`, `ranks 6, 7`, `ranks 0-4, 6, 7`; of many scattered ones the first."""
    numbers = sorted(set(ranks))
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    parts: list[str] = []
    for span in spans:
        is_long = len(span) >= SHORTEST_SPAN
        parts += [f"{span[0]}-{span[-1]}"] if is_long else map(str, span)
    shown = ", ".join(parts[:MAX_PARTS]) + (", …" if len(parts) > MAX_PARTS else "")
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"
