"""JSON that every parser accepts: non-finite numbers are the strings "inf", "-inf" and "nan", all of it ASCII."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

# Inside a string these escapes mean the same to a JSON parser and nothing to a page that the JSON is pasted into.
_MARKUP = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def to_json(value: Any) -> str:
    """Return ``value`` as indented JSON, ended by a newline.

    Args:
        value: What ``to_plain`` takes.

    Raises:
        TypeError: A type that has no place in a result.
    """
    return json.dumps(to_plain(value), indent=2, allow_nan=False).translate(_MARKUP) + "\n"


def to_json_line(value: Any) -> str:
    """Return ``value`` as one line of JSON, ended by a newline; the rest as ``to_json``."""
    return json.dumps(to_plain(value), separators=(",", ":"), allow_nan=False).translate(_MARKUP) + "\n"


def to_plain(value: Any) -> Any:
    """Return ``value`` as what JSON knows.

    Args:
        value: None, bool, int, float, str, a path, a dataclass instance, a mapping with string keys, or a sequence or
            set of these. Dataclasses become objects of their fields.

    Raises:
        TypeError: Anything else.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (str, os.PathLike)):
        # A name that is no text, as the operating system may have one, would be no UTF-8 either.
        return os.fspath(value).encode("utf-8", "backslashreplace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range, set, frozenset)):
        return [to_plain(item) for item in (sorted(value) if isinstance(value, (set, frozenset)) else value)]
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def fields_of(value: object, *names: str) -> dict[str, Any]:
    """Return attributes of a value by their names, for an object of JSON."""
    return {name: getattr(value, name) for name in names}
