"""One TOML table, read key by key: every mistake becomes one line that names its culprit."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from puffrun.errors import UsageError

MAX_SECONDS = 1e9  # 31 years; above, waits overflow

# bool before int: it is one
_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "{}"),
    (str, "the string `{:.60}`"),
    (int, "the integer {}"),
    (float, "the number {}"),
    (dict, "a table"),
    (list, "a list"),
)


def describe(value: object) -> str:
    """Say in words what a TOML value is: ``the string `8` ``, `the integer 0`, `a table`."""
    for kind, words in _KINDS:
        if isinstance(value, kind):
            return words.format(str(value).lower() if isinstance(value, bool) else value)
    return "a date or time"


def name_nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that looks most like `word`, or None when none is close."""
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(name.lower().replace("_", "-"), name)
    near = get_close_matches(word.lower().replace("_", "-"), folded, n=1, cutoff=0.6)
    return folded[near[0]] if near else None


def hint_nearest(word: str, known: Iterable[str], *, are: str = "known are") -> str:
    """Make a hint out of the nearest known word, or out of all of them."""
    words = sorted(known)
    near = name_nearest(word, words)
    if near is not None:
        return f"did you mean `{near}`?"
    return f"{are} " + ", ".join(f"`{w}`" for w in words) if words else "there are none"


def as_seconds(value: object) -> float | None:
    """Return a duration as float seconds; None unless it is from 0 to `MAX_SECONDS`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= MAX_SECONDS else None


@dataclass(frozen=True)
class Table:
    """A table of a config file. `file` and `name` (`[train]`) are how errors call it."""

    values: Mapping[str, Any]
    name: str
    file: str

    def refuse_unknown(self, known: Iterable[str], also: Iterable[str] = ()) -> None:
        """Raise a UsageError for the first key that is not known; `also` are no hints."""
        words, also = list(known), list(also)
        for key in self.values:
            if key not in words and key not in also:
                where = f"in {self.name}" if self.name else "at the top level"
                raise UsageError(
                    f"{self.file}: unknown key `{key}` {where}", hint=hint_nearest(key, words)
                )

    def wrong(self, key: str, expected: str, *, hint: str | None = None) -> UsageError:
        """Make the error for a value that does not fit."""
        where = f" in {self.name}" if self.name else ""
        found = describe(self.values[key])
        return UsageError(
            f"{self.file}: `{key}`{where} must be {expected}, found {found}", hint=hint
        )

    def table(self, key: str) -> "Table":
        """Return a table inside this one; an empty one when the key is absent."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "a table")
        inner = f"{self.name[1:-1]}.{key}" if self.name else key
        return Table(value, f"[{inner}]", self.file)

    def text(self, key: str) -> str | None:
        """Return a string that is not empty, or None when the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(key, "a string that is not empty")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty when the key is absent."""
        value = self.values.get(key, [])
        if not isinstance(value, list):
            words = ", ".join(f'"{w}"' for w in value.split()) if isinstance(value, str) else ""
            raise self.wrong(
                key, "a list of strings", hint=f"write `{key} = [{words}]`" if words else None
            )
        for item in value:
            if not isinstance(item, str) or "\0" in item:
                raise UsageError(
                    f"{self.file}: `{key}` in {self.name} must be a list of strings, "
                    f"found {describe(item)} in it",
                    hint=f'write `"{item}"`' if isinstance(item, int | float) else None,
                )
        return tuple(value)

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """Return a table of strings as pairs, in its order; integers are taken as their text."""
        table = self.table(key)
        pairs = []
        for name, value in table.values.items():
            integer = isinstance(value, int) and not isinstance(value, bool)
            if not integer and not isinstance(value, str):
                raise table.wrong(name, "a string")
            if "\0" in name + str(value):
                raise table.wrong(name, "a string without NUL")
            pairs.append((name, str(value)))
        return tuple(pairs)

    def seconds(self, key: str, default_s: float) -> float:
        """Return a duration in seconds."""
        if key not in self.values:
            return default_s
        value = as_seconds(self.values[key])
        if value is None:
            raise self.wrong(key, "a number of seconds, 0 or more")
        return value

    def choice(self, key: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`; the first one when the key is absent."""
        value = self.values.get(key, choices[0])
        if value not in choices:
            raise self.wrong(key, " or ".join(f"`{c}`" for c in choices))
        return str(value)
