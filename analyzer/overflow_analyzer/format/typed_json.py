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


def build(kind: Any, value: Any) -> Any:
    """Return a JSON value as what a type hint says: a dataclass of the hints known here, a scalar, a tuple, a dict.

    Args:
        kind: The hint.
        value: What a file says, which is not believed.

    Raises:
        TypeError, KeyError, ValueError: It is something else.
    """
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return kind(**{name: build(hint, value[name]) for name, hint in _hints(kind).items() if name in value})
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        inner = next(one for one in arguments if one is not type(None))
        return None if value is None else build(inner, value)
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise TypeError(f"a {type(value).__name__} is not a list")
        return tuple(build(arguments[0], item) for item in value)
    if typing.get_origin(kind) is dict:
        if not isinstance(value, dict):
            raise TypeError(f"a {type(value).__name__} is not an object")
        return {key: build(arguments[1], item) for key, item in value.items()}
    if kind is float and (value in ("inf", "-inf", "nan") or type(value) is int):
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} is not of type {kind.__name__}")
    return value
