"""Turns JSON values back into frozen dataclasses, or says which value is wrong."""

import dataclasses
import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class DecodeError(ValueError):
    """A JSON value is not what its field says; the text names the field and what was found."""


def decode(kind: Any, value: Any, where: str) -> Any:
    """Turn one JSON value into a value of type `kind`; `where` names it in errors."""
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _decode_fields(kind, value, where)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _decode_optional(kind, value, where)
    if origin is tuple:
        _expect(isinstance(value, list), "a list", value, where)
        item_kind = get_args(kind)[0]
        return tuple(decode(item_kind, item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Literal:
        _expect(value in get_args(kind), f"one of {', '.join(get_args(kind))}", value, where)
        return value
    return _decode_plain(origin or kind, value, where)


def _decode_fields(kind: Any, value: Any, where: str) -> Any:
    """Fill a dataclass from an object; what is absent has its default, what is unknown is left."""
    _expect(isinstance(value, dict), "an object", value, where)
    hints = get_type_hints(kind)
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        place = f"{where}.{field.name}" if where else field.name
        if field.name in value:
            found[field.name] = decode(hints[field.name], value[field.name], place)
        elif not _has_default(field):
            raise DecodeError(f"`{place}` is missing")
    return kind(**found)


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _decode_optional(kind: Any, value: Any, where: str) -> Any:
    if value is None:
        return None
    (inner,) = (option for option in get_args(kind) if option is not types.NoneType)
    return decode(inner, value, where)


def _decode_plain(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    is_right = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    names = {int: "a whole number", float: "a number", str: "a text", dict: "an object"}
    _expect(is_right, names.get(kind, str(kind)), value, where)
    return value


def _expect(is_right: bool, wanted: str, value: Any, where: str) -> None:  # noqa: FBT001 - the condition itself reads best first
    if not is_right:
        raise DecodeError(f"`{where or 'report'}` should be {wanted}, found `{value!r:.60}`")
