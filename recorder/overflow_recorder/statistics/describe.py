"""The names of a tensor's dtype, device and layout, its shape, and what is special about its figures."""

from __future__ import annotations

from typing import NamedTuple

import torch

from overflow_recorder.faults import raised_by_signal_handler
from overflow_recorder.statistics.formats import COMPLEX, FLOAT4_DTYPE, FORMATS
from overflow_recorder.statistics.quiet import PLAIN, function_mode_enabled, quiet
from overflow_recorder.statistics.values import has_memory, is_dequantized, is_functorch_wrapped, is_masked, unwrap

UNKNOWN_SIZE = -1
"""Stands for a size that is not a number: a nested tensor's ragged dimension, or a symbol while torch compiles."""


class Description(NamedTuple):
    """What a tensor is. The names are torch's own, without `torch.`."""

    dtype: str
    device: str
    layout: str
    shape: tuple[int, ...]
    """Of a distributed tensor, the local shard's; `UNKNOWN_SIZE` where a size is not a number."""
    numel: int
    """The elements that the figures speak of (of a masked tensor: all of them, masked or not)."""
    note: str | None
    """What the figures stand for where that is not simply the elements, or why there are none."""


_new = tuple.__new__
_devices: dict[torch.device, str] = {}  # filled as devices turn up; never meta, whose tensors have no values


def describe(tensor: torch.Tensor) -> Description:
    """Describe `tensor` without touching its elements or waiting for its device; never raises."""
    try:
        if type(tensor) in PLAIN and not function_mode_enabled() and tensor.layout is torch.strided:
            # Two look-ups: making a name anew costs five times as much. What is not found there needs a note.
            names = _dtypes[tensor.dtype], _devices[tensor.device], "strided"
            if not is_functorch_wrapped(tensor):
                return _new(Description, (*names, tensor.shape, tensor.numel(), None))
    except Exception as error:  # a nested tensor has no shape, a device is new: the long way finds out
        if raised_by_signal_handler(error):
            raise
    with quiet():
        try:
            return _describe_any(tensor)
        except Exception as error:  # an unknown kind of tensor is a row without figures, and training goes on
            if raised_by_signal_handler(error):
                raise
            return Description(
                _name(tensor.dtype), str(tensor.device), _name(tensor.layout), (), 0, "no values: unreadable"
            )


def _describe_any(tensor: torch.Tensor) -> Description:
    inner, notes = unwrap(tensor)
    shown = tensor if inner is None else inner
    device = str(tensor.device)
    if tensor.device.type != "meta":
        _devices[tensor.device] = device
    shape = tuple(_length(shown, dimension) for dimension in range(shown.dim()))
    numel = shown.numel() if type(shown.numel()) is int else UNKNOWN_SIZE
    if inner is not None:
        note, factor = _special(inner)
        notes, numel = (*notes, *note), numel * factor
    return Description(_name(tensor.dtype), device, _name(shown.layout), shape, numel, ", ".join(notes) or None)


def _name(thing: torch.dtype | torch.layout) -> str:
    return str(thing).removeprefix("torch.")


def _special(tensor: torch.Tensor) -> tuple[tuple[str, ...], int]:
    """What is to be said of a tensor that may have values, and how many of them stand in one element."""
    if is_masked(tensor):
        return ("masked",), 1
    if is_dequantized(tensor):
        return ("dequantized",), 1
    if tensor.layout == torch.strided and not tensor.is_nested and not has_memory(tensor):
        return (f"no values: {type(tensor).__name__} without memory",), 1
    if tensor.dtype == FLOAT4_DTYPE:
        return ("two values an element",), 2
    return (), 1


def _length(tensor: torch.Tensor, dimension: int) -> int:
    try:
        length = tensor.size(dimension)
    except RuntimeError:  # the ragged dimension of a nested tensor
        return UNKNOWN_SIZE
    return length if type(length) is int else UNKNOWN_SIZE  # int() of a symbol would bind it to its present value


_dtypes = {dtype: _name(dtype) for dtype in (*FORMATS, *COMPLEX)}
