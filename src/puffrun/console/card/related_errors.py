"""The exceptions behind the one that ended a rank: a line each. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from puffrun.console.card.frames import pick_user_frames, shorten_path
from puffrun.console.text import clean_line, shorten
from puffrun.outcome import Cause, Frame

_WORDS = {"cause": "caused by: ", "context": "raised while handling: ", "member": "in the group: "}


def render_related(cause: Cause, cwd: Path, width: int) -> list[str]:
    """Say the root cause last, for it is the one to look at; what is odd is left out."""
    told = cause.detail.get("related")
    found = [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []
    return [_render(each, cwd, width) for each in found if each.get("relation") in _WORDS]


def _render(related: Mapping[str, Any], cwd: Path, width: int) -> str:
    kind, message = str(related.get("type") or ""), str(related.get("message") or "")
    first = next((line for line in message.split("\n") if line.strip()), "")
    said = _WORDS[str(related["relation"])] + clean_line(f"{kind}: {first}".rstrip(": "))
    place = _find_place(related.get("frames"), cwd)
    return f"{shorten(said, max(width - len(place), 20))}{place}"


def _find_place(frames: Any, cwd: Path) -> str:
    try:
        picked = pick_user_frames([Frame(**frame) for frame in frames])
    except TypeError:
        return ""
    if not picked:
        return ""
    return f" ({clean_line(shorten_path(picked[-1].path, cwd))}:{picked[-1].line})"
