"""What stands behind a tensor that is not simply elements in memory."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

_functorch: Any = torch._C._functorch  # the one place that can look behind a transform's wrappers
_DEPTH = 8  # wrappers in wrappers; more than this is a cycle

is_functorch_wrapped = _functorch.is_functorch_wrapped_tensor


class Unwrapped(NamedTuple):
    """A tensor without its wrappers."""

    tensor: torch.Tensor | None
    """The tensor whose elements are measured; None where there are none to be had."""
    notes: tuple[str, ...]
    """What was taken off, or why there are no elements."""


def unwrap(tensor: torch.Tensor) -> Unwrapped:
    """Take off wrappers that hold one tensor (DTensor, functorch); runs no operation on elements.

    Call it under `quiet`, so that reading an attribute runs no user's code.
    """
    notes: list[str] = []
    for _ in range(_DEPTH):
        missing = _missing(tensor)
        if missing is not None:
            return Unwrapped(None, (*notes, f"no values: {missing}"))
        inner, note = _inner(tensor)
        if inner is None:
            return Unwrapped(tensor, tuple(notes))
        if note not in notes:
            notes.append(note)
        tensor = inner
    return Unwrapped(None, (*notes, "no values: wrapped too deeply"))


def _missing(tensor: torch.Tensor) -> str | None:
    """Say why a tensor has no elements, if it has none."""
    if is_a(tensor, "torch._subclasses.fake_tensor", "FakeTensor"):
        return "fake"
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        return "uninitialized"
    if tensor.device.type == "meta":
        return "meta"
    if torch._is_functional_tensor(tensor) or is_a(tensor, "torch._subclasses.functional_tensor", "FunctionalTensor"):
        return "functional"
    return None


def _inner(tensor: Any) -> tuple[torch.Tensor | None, str]:
    """The tensor that this one wraps, if it wraps one, and what that says about the figures."""
    if is_functorch_wrapped(tensor):
        return _functorch.get_unwrapped(tensor), "behind a functorch transform"
    if is_a(tensor, "torch.distributed.tensor", "DTensor"):
        return tensor._local_tensor, f"local shard of {tuple(tensor.shape)}"
    return None, ""


def is_a(tensor: torch.Tensor, module: str, name: str) -> bool:
    """Whether `tensor` is an instance of a class whose module may never have been imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(tensor, kind)
