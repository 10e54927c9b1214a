"""What a check says."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """What was found, why it matters, what to type. A note is worth knowing and fails nothing."""

    found: str
    why: str
    fix: str
    level: Literal["problem", "note"] = "problem"
