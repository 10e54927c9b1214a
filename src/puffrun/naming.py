"""How ranks, signals and exits are named wherever people read of them."""

import signal
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


def signal_name(signum: int) -> str:
    """Name a signal: 15 is `SIGTERM`, 37 is `SIGRTMIN+3`, an unknown one `signal 99`."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        pass
    if signal.SIGRTMIN < signum < signal.SIGRTMAX:
        return f"SIGRTMIN+{signum - signal.SIGRTMIN}"
    return f"signal {signum}"


def describe_exit(returncode: int) -> str:
    """Say how a process ended, of what subprocess calls its returncode.

    `exited 1`, `was killed by SIGKILL`.
    """
    return (
        f"exited {returncode}" if returncode >= 0 else f"was killed by {signal_name(-returncode)}"
    )
