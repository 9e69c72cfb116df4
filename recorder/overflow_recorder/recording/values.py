"""Walking what a module was given and what it returned: every tensor gets its context, whatever it is nested in."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from overflow_recorder.faults import raised_by_signal_handler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt


MAX_DEPTH: Final = 32
"""Containers inside containers that are opened; what lies deeper is a leaf."""
MAX_LEAVES: Final = 500
"""Leaves of one value that are named."""
_MAX_COUNTED: Final = 10_000
_MAX_KEY_LENGTH: Final = 80


class More(NamedTuple):
    """Stands for the leaves of a very wide value that are not named one by one."""

    leaves: int
    exact: bool
    """False where there are more than ``leaves``: they were not all counted."""

    def __str__(self) -> str:
        """Return what a reader of the trace is told."""
        return f"{'' if self.exact else 'more than '}{self.leaves} more values are not recorded"


def walk_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int = MAX_LEAVES) -> Iterator[tuple[str, Any]]:
    """Yield (context, value) of every tensor, None and other value that a forward was given.

    Keywords are named by their name and only those that hold a tensor are yielded: the many flags of a model's forward
    would bury the figures.
    """
    for position, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            yield f"input[{position}]", value
        else:
            yield from walk(value, f"input[{position}]", limit)
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor):
            yield f"input[{name}]", value
        elif value is not None:
            found = list(walk(value, f"input[{name}]", limit))
            if any(isinstance(inner, torch.Tensor) for _, inner in found):
                yield from found


def walk(value: Any, context: str, limit: int = MAX_LEAVES) -> Iterator[tuple[str, Any]]:
    """Yield (context, value) for every leaf of nested tuples, lists, deques, mappings and dataclasses.

    An empty container, a container inside itself, one deeper than ``MAX_DEPTH``, one that cannot be read and any other
    object are leaves. Nothing is consumed: iterators and generators are leaves too. Behind ``limit`` leaves one
    ``More`` stands for the rest.
    """
    leaves = _leaves(value, context, ())
    yield from itertools.islice(leaves, limit)
    more = sum(1 for _ in itertools.islice(leaves, _MAX_COUNTED))
    if more:
        yield f"{context}[...]", More(more, exact=more < _MAX_COUNTED)


def _leaves(value: Any, context: str, path: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    children = None if isinstance(value, torch.Tensor) or len(path) >= MAX_DEPTH else _children(value)
    if children is None or id(value) in path:
        yield context, value
        return
    path = (*path, id(value))
    for key, child in children:
        yield from _leaves(child, f"{context}[{key}]", path)


def _children(value: Any) -> Iterable[tuple[str, Any]] | None:
    """The named parts of a container that has any; None for everything else, a custom object included."""
    try:
        if isinstance(value, (tuple, list, deque)):
            # A namedtuple's parts are named by position too: that is how contexts have always named a tuple's.
            return ((str(position), child) for position, child in enumerate(value)) if value else None
        if isinstance(value, Mapping):
            keys = itertools.islice(value, MAX_LEAVES + _MAX_COUNTED)
            return [(_key(key, position), value[key]) for position, key in enumerate(keys)] or None
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return [(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)] or None
    except Exception as error:  # a container whose own code fails is a value like any other
        if raised_by_signal_handler(error):
            raise
        return None
    return None


def _key(key: Any, position: int) -> str:
    if isinstance(key, str):
        text = str.__str__(key).encode("utf-8", "backslashreplace").decode()  # a lone surrogate is no text in a trace
    elif _is_plain(key):
        text = repr(key)
    else:  # the text of an object (a tensor, say) may cost anything, and may fail
        text = f"{type(key).__name__} {position}"
    return text if len(text) <= _MAX_KEY_LENGTH else text[:_MAX_KEY_LENGTH] + "..."


def _is_plain(key: Any) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    return all(part is None or isinstance(part, (bool, int, float, complex, bytes)) for part in parts)


def as_tensor(value: Any) -> Any:
    """Return a number or an array of numbers as a tensor of the same values, a float in float64; others unchanged."""
    if isinstance(value, (np.ndarray, np.generic)):
        return _from_numpy(np.asarray(value))
    for kind, dtype in ((bool, None), (int, torch.int64), (float, torch.float64), (complex, torch.complex128)):
        if isinstance(value, kind):
            return value if dtype is None else _from_number(value, dtype)
    return value


def _from_number(value: complex, dtype: torch.dtype) -> Any:
    try:
        return torch.tensor(value, dtype=dtype, device="cpu")
    except (OverflowError, RuntimeError, ValueError):
        return value  # an integer beyond 64 bits


def _from_numpy(array: npt.NDArray[Any]) -> Any:
    if array.dtype.kind not in "biufc":
        return array
    dtype = array.dtype.newbyteorder("=")
    widest = np.dtype("c16" if dtype.kind == "c" else "f8")
    if dtype.kind in "fc" and dtype.itemsize > widest.itemsize:
        dtype = widest
    # A copy: torch warns of memory that is read-only, and refuses other byte orders and strides that go backwards.
    return torch.from_numpy(np.array(array, dtype, order="C", copy=True))
