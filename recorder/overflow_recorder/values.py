"""Walking what a module was given and what it returned: every tensor gets its context, whatever it is nested in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_DEPTH", "walk", "walk_inputs"]

MAX_DEPTH = 32
_MAX_KEY_LENGTH = 80


def walk_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (context, value) of every tensor, None and other value that a forward was given.

    Keywords are named by their name and only those that hold a tensor are yielded: the many flags of a model's forward
    would bury the figures.
    """
    for position, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            yield f"input[{position}]", value
        else:
            yield from walk(value, f"input[{position}]")
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor):
            yield f"input[{name}]", value
        elif value is not None:
            found = list(walk(value, f"input[{name}]"))
            if any(isinstance(inner, torch.Tensor) for _, inner in found):
                yield from found


def walk(value: Any, context: str, _path: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield (context, value) for every leaf of nested tuples, lists, mappings and dataclasses.

    An empty container, a container inside itself and one deeper than ``MAX_DEPTH`` are leaves.
    """
    children = None if isinstance(value, torch.Tensor) else _children(value)
    if not children or id(value) in _path or len(_path) >= MAX_DEPTH:
        yield context, value
        return
    path = (*_path, id(value))
    for key, child in children:
        yield from walk(child, f"{context}[{key}]", path)


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a container; None for anything else, a custom object included."""
    if isinstance(value, (tuple, list)):
        return [(str(position), child) for position, child in enumerate(value)]
    if isinstance(value, Mapping):
        return [(_key(key), value[key]) for key in value]
    if hasattr(type(value), "__dataclass_fields__"):
        return [(name, getattr(value, name, None)) for name in type(value).__dataclass_fields__]
    return None


def _key(key: Any) -> str:
    text = key if isinstance(key, str) else repr(key)
    return text if len(text) <= _MAX_KEY_LENGTH else text[:_MAX_KEY_LENGTH] + "..."
