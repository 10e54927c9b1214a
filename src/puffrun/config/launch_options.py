"""The launch options, once for `[launch]` and once for the command line: one table of keys.

A reader takes a TOML value and returns what belongs into `LaunchOptions`, or raises `ValueError`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from puffrun.config.run_config import LaunchOptions
from puffrun.config.table import Table, as_seconds
from puffrun.errors import UsageError

MAX_COUNT = 4096  # of ranks on a node, and of nodes; a slip of the finger is no fork bomb


def _read_integer(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
        raise ValueError
    return value


def _read_count(value: object) -> int:
    return _read_integer(value, 1)


def _read_natural(value: object) -> int:
    return _read_integer(value, 0)


def _read_gpus(value: object) -> int | str:
    return value if value in {"all", "auto"} and isinstance(value, str) else _read_count(value)


def _read_seconds(value: object) -> float:
    seconds = as_seconds(value)
    if seconds is None:
        raise ValueError
    return seconds


def _read_limit(value: object) -> float | None:
    return _read_seconds(value) or None


def _read_flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError  # noqa: TRY004 - one way to say that a value does not fit
    return value


def _read_text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return value


def _read_items(value: object) -> list[str]:
    """Split `0,2,5`, `[0, 2, 5]` or a lone 3 into words that are not empty."""
    items = value.split(",") if isinstance(value, str) else value
    if isinstance(items, int) and not isinstance(items, bool):
        items = [items]
    if not isinstance(items, list) or not items:
        raise ValueError
    words = [str(i).strip() for i in items if not isinstance(i, bool)]
    if not all(words) or len(words) != len(items):
        raise ValueError
    return words


def _read_gpu_ids(value: object) -> tuple[str, ...]:
    words = _read_items(value)
    if len(set(words)) < len(words) or not all(
        re.fullmatch(r"\d+|(GPU|MIG)-\S+", w) for w in words
    ):
        raise ValueError
    return tuple(words)


def _read_ranks(value: object) -> tuple[int, ...] | str:
    if value == "all":
        return "all"
    ranks: set[int] = set()
    for word in _read_items(value):
        span = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", word)
        if span is None:
            raise ValueError
        first, last = int(span[1]), int(span[2] or span[1])
        if last < first:
            raise ValueError
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def _read_endpoint(value: object) -> str:
    text = _read_text(value)
    host, _, port = text.rpartition(":")
    if not host or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65536:  # noqa: PLR2004 - ports
        raise ValueError
    return text


@dataclass(frozen=True)
class LaunchKey:
    """One launch option: its field, what it expects in words, its reader.

    `numeric` says that digits on the command line mean a number, as they do in TOML.
    """

    field: str
    expected: str
    read: Callable[[Any], object]
    numeric: bool = True


_SECONDS = "a number of seconds, 0 or more"

LAUNCH_KEYS: Mapping[str, LaunchKey] = {
    "gpus": LaunchKey(
        "gpus", f"a number of GPUs from 1 to {MAX_COUNT}, `all` or `auto`", _read_gpus
    ),
    "gpu-ids": LaunchKey("gpu_ids", "different GPUs such as `0,2,5`", _read_gpu_ids),
    "cpus": LaunchKey("cpus", f"a number of ranks from 1 to {MAX_COUNT}", _read_count),
    "nodes": LaunchKey("nodes", f"a number of nodes from 1 to {MAX_COUNT}", _read_count),
    "node-rank": LaunchKey("node_rank", f"a node's number from 0 to {MAX_COUNT}", _read_natural),
    "rdzv-endpoint": LaunchKey("rdzv_endpoint", "HOST:PORT", _read_endpoint, numeric=False),
    "grace": LaunchKey("grace_s", _SECONDS, _read_seconds),
    "stall-timeout": LaunchKey("stall_timeout_s", f"{_SECONDS} (0: off)", _read_seconds),
    "exit-timeout": LaunchKey("exit_timeout_s", _SECONDS, _read_seconds),
    "dead-child-timeout": LaunchKey("dead_child_timeout_s", _SECONDS, _read_seconds),
    "timeout": LaunchKey("timeout_s", f"{_SECONDS} (0: no limit)", _read_limit),
    "max-restarts": LaunchKey(
        "max_restarts", f"a number of restarts from 0 to {MAX_COUNT}", _read_natural
    ),
    "preload": LaunchKey("preload", "true or false", _read_flag),
    "show-ranks": LaunchKey("show_ranks", "ranks such as `0`, `0,2`, `0-3` or `all`", _read_ranks),
    "run-dir": LaunchKey("run_dir", "a directory", _read_text, numeric=False),
}


def load_launch(table: Table, root_dir: Path) -> LaunchOptions:
    """Read `[launch]`: every option by its long name, written with `-` or `_`."""
    table.refuse_unknown(LAUNCH_KEYS, also=[key.replace("-", "_") for key in LAUNCH_KEYS])
    fields: dict[str, Any] = {}
    for written, value in table.values.items():
        key = LAUNCH_KEYS[written.replace("_", "-")]
        if key.field in fields:
            raise UsageError(f"{table.file}: `{written}` is given twice in {table.name}")
        try:
            fields[key.field] = key.read(value)
        except ValueError:
            raise table.wrong(written, key.expected) from None
    if "run_dir" in fields:
        fields["run_dir"] = root_dir / fields["run_dir"]
    options = LaunchOptions(**fields)
    refuse_gpus_with_cpus(options, f"{table.file}: `gpus` and `cpus` in {table.name}")
    return options


def apply_flags(
    options: LaunchOptions, flags: Mapping[str, str | bool | None], cwd: Path
) -> LaunchOptions:
    """Put the flags of a command line (by long name; None: not given) over `[launch]`.

    A flag that picks the devices replaces whatever the config says about devices. `run-dir` is
    relative to `cwd`.
    """
    fields = {}
    for name, text in flags.items():
        if text is not None:
            key = LAUNCH_KEYS[name]
            fields[key.field] = _read_flag_text(name, key, text)
    if "run_dir" in fields:
        fields["run_dir"] = cwd / fields["run_dir"]
    refuse_gpus_with_cpus(replace(LaunchOptions(), **fields), "`--gpus` and `--cpus`")
    fields = _device_fields(fields) | fields
    return replace(options, **fields)


def _device_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Say what becomes of the config's choice of devices when flags make their own."""
    if not fields.keys() & {"gpus", "gpu_ids", "cpus"}:
        return {}
    dropped: dict[str, Any] = {"gpus": None, "gpu_ids": None}
    return dropped if fields.get("gpus") == "auto" else dropped | {"cpus": None}


def _read_flag_text(name: str, key: LaunchKey, text: str | bool) -> Any:  # noqa: FBT001 - a TOML value
    try:
        return key.read(_as_toml(text) if key.numeric else text)
    except ValueError:
        raise UsageError(f"`--{name}` must be {key.expected}, found `{text}`") from None


def _as_toml(text: str | bool) -> str | bool | int | float:  # noqa: FBT001 - a TOML value
    """Read a command-line word as TOML would: digits are numbers."""
    if isinstance(text, bool):
        return text
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def refuse_gpus_with_cpus(options: LaunchOptions, what: str) -> None:
    """Raise a UsageError when both kinds of device are asked for; `gpus = "auto"` takes both."""
    gpus_asked = options.gpus not in {None, "auto"} or options.gpu_ids is not None
    if gpus_asked and options.cpus is not None:
        raise UsageError(
            f"{what} exclude each other",
            hint="give one of them, or `auto` as GPUs: all there are, or else the CPU",
        )
