"""Why an artifact is stale, as values with old and new, and in words."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from puffrun.artifacts.freshness.hashing import EXECUTABLE

Kind = Literal[
    "never-built",
    "forced",
    "command",
    "setting",
    "env",
    "input-new",
    "input-changed",
    "input-gone",
    "tool",
    "probe",
    "need",
    "output",
    "install",
]
NOT_FOUND = "not found"
SHOWN_REASONS = 3
SHOWN_CHARACTERS = 60
HASH_CHARACTERS = 12
_HASHED = ("input-new", "input-changed", "input-gone")


@dataclass(frozen=True)
class StaleReason:
    """One reason: what differs (`subject`), from what, to what. None: it was not there."""

    kind: Kind
    subject: str = ""
    old: str | None = None
    new: str | None = None

    def __str__(self) -> str:
        """Say it in a few words, such as `CFLAGS: -O2 → -O3` or `drive.h changed`."""
        return _WORDS[self.kind](self)

    def explain(self) -> str:
        """Say it with old and new, which for a file are its content's hashes."""
        if self.kind not in _HASHED:
            return str(self)
        old, new = _show_hash(self.old), _show_hash(self.new)
        if self.kind == "input-changed":
            return f"{self}: {old} → {new}"
        hashed = new if self.kind == "input-new" else old
        return f"{self}: {hashed}" if hashed else str(self)


def _show_hash(digest: str | None) -> str:
    """Shorten a hash; that a file is executable is a part of it."""
    if digest is None:
        return ""
    plain = digest.removesuffix(EXECUTABLE)
    return f"sha256 {plain[:HASH_CHARACTERS]}…" + (", executable" if plain != digest else "")


def _say_change(reason: StaleReason) -> str:
    return f"{reason.subject}: {_shorten(reason.old)} → {_shorten(reason.new)}"


_WORDS: dict[Kind, Callable[[StaleReason], str]] = {
    "never-built": lambda _: "never built",
    "forced": lambda _: "asked to be built again",
    "command": _say_change,
    "setting": _say_change,
    "env": _say_change,
    "input-new": lambda r: f"new input {r.subject}",
    "input-changed": lambda r: f"{r.subject} changed",
    "input-gone": lambda r: f"input {r.subject} is gone",
    "tool": lambda r: f"{r.subject} changed: {_shorten(r.old)} → {_shorten(r.new)}",
    "probe": lambda r: f"{r.subject} changed: {_shorten(r.old)} → {_shorten(r.new)}",
    "need": lambda r: f"{r.subject} {r.new or 'changed'}",
    "output": lambda r: f"output {r.subject} {r.new}",
    "install": lambda r: f"{r.subject} {r.new}",
}


def render_reasons(reasons: Sequence[StaleReason]) -> str:
    """Say the first few reasons in one line, and how many more there are."""
    shown = ", ".join(str(reason) for reason in reasons[:SHOWN_REASONS])
    more = len(reasons) - SHOWN_REASONS
    return f"{shown}, and {more} more" if more > 0 else shown


def compare_parts(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[StaleReason, ...]:
    """Name every part of the fingerprint that differs, the most telling first."""
    return (
        *_compare_command(old.get("cmd", []), new["cmd"]),
        *_compare_settings(old, new),
        *_compare_named("env", old.get("env", {}), new["env"]),
        *compare_inputs(old.get("inputs", {}), new["inputs"]),
        *_compare_tools(old.get("tools", {}), new["tools"]),
        *_compare_named("probe", old.get("probes", {}), new["probes"]),
        *_compare_needs(old.get("needs", {}), new["needs"]),
    )


def compare_inputs(old: Mapping[str, str], new: Mapping[str, str]) -> tuple[StaleReason, ...]:
    """Name the inputs that changed, came and went, in that order."""
    changed = [
        StaleReason("input-changed", path, old[path], new[path])
        for path in new
        if path in old and old[path] != new[path]
    ]
    came = [StaleReason("input-new", path, None, new[path]) for path in new if path not in old]
    gone = [StaleReason("input-gone", path, old[path], None) for path in old if path not in new]
    return (*changed, *came, *gone)


def _compare_command(old: Sequence[str], new: Sequence[str]) -> list[StaleReason]:
    if list(old) == list(new):
        return []
    differing = [(a, b) for a, b in zip(old, new, strict=False) if a != b]
    if len(old) == len(new) and len(differing) == 1:
        return [StaleReason("command", "command", *differing[0])]
    return [StaleReason("command", "command", shlex.join(old), shlex.join(new))]


def _compare_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[StaleReason]:
    return [
        StaleReason("setting", key, _as_text(old.get(key)), _as_text(new.get(key)))
        for key in ("outputs", "mode", "machine", "schema")
        if old.get(key) != new.get(key)
    ]


def _compare_named(
    kind: Literal["env", "probe"],
    old: Mapping[str, str | None],
    new: Mapping[str, str | None],
) -> list[StaleReason]:
    return [
        StaleReason(kind, name, old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if (name in old, old.get(name)) != (name in new, new.get(name))
    ]


def _compare_needs(old: Mapping[str, str], new: Mapping[str, str | None]) -> list[StaleReason]:
    reasons = []
    for name in sorted({*old, *new}):
        if name not in new:
            reasons.append(StaleReason("need", name, old[name], "is needed no more"))
        elif new[name] is None:
            reasons.append(StaleReason("need", name, old.get(name), "is stale"))
        elif name not in old:
            reasons.append(StaleReason("need", name, None, "is needed now"))
        elif old[name] != new[name]:
            reasons.append(StaleReason("need", name, old[name]))
    return reasons


def _compare_tools(
    old: Mapping[str, str | None], new: Mapping[str, str | None]
) -> list[StaleReason]:
    reasons = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before != after:
            shown = _telling_lines(before or NOT_FOUND, after or NOT_FOUND)
            reasons.append(StaleReason("tool", name, *shown))
    return reasons


def _telling_lines(old: str, new: str) -> tuple[str, str]:
    """Pick the line with the version of each, or the first that differs when that is the same."""
    if summarise_version(old) != summarise_version(new):
        return summarise_version(old), summarise_version(new)
    pairs = zip_longest(old.splitlines(), new.splitlines(), fillvalue="")
    return next(((a, b) for a, b in pairs if a != b), (old, new))


def summarise_version(text: str) -> str:
    """Pick the line of a tool's `--version` output that has a version number in it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if any(c.isdigit() for c in line)]
    return (telling or lines or [""])[0]


def _as_text(value: Any) -> str | None:
    return " ".join(value) if isinstance(value, list) else None if value is None else str(value)


def _shorten(text: str | None) -> str:
    if text is None:
        return "unset"
    if text == "":
        return "empty"
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
