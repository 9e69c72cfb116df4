"""JSON that describes dataclasses: each value has the type that its field says, or is refused."""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from typing import Any


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@cache
def _parts_of(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


def build(kind: Any, value: Any) -> Any:
    """Return a JSON value, which is not believed, as what a type hint says; keys that are no fields are left out.

    Raises:
        TypeError: It is something else, or a field without a default is missing.
    """
    origin, arguments = _parts_of(kind)
    if type(value) is kind or kind is Any or (origin is typing.Literal and value in arguments):
        return value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**{name: build(hint, value[name]) for name, hint in _hints(kind).items() if name in value})
    if origin in (types.UnionType, typing.Union):
        inner = next(one for one in arguments if one is not type(None))
        return None if value is None else build(inner, value)
    if origin is tuple and isinstance(value, list):
        return tuple([build(arguments[0], item) for item in value])
    if origin is dict and isinstance(value, dict):
        return {key: build(arguments[1], item) for key, item in value.items()}
    if kind is float and (value in ("inf", "-inf", "nan") or type(value) is int):
        return float(value)
    raise TypeError(f"a {type(value).__name__} is not of type {getattr(kind, '__name__', kind)}")
