"""Figures of tensors in the host's memory, at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from overflow_recorder.statistics.derived import negated, repeated, with_zeros
from overflow_recorder.statistics.extrema import extrema
from overflow_recorder.statistics.figures import EMPTY, UNKNOWN, Figures, Statistics
from overflow_recorder.statistics.formats import FORMATS, Array, Format
from overflow_recorder.statistics.memory import ADDRESSES, elements, pieces, storage_address
from overflow_recorder.statistics.moments import add_moments
from overflow_recorder.statistics.packed import packed
from overflow_recorder.statistics.parallel import is_large, parallel_extrema
from overflow_recorder.statistics.quiet import PLAIN, function_mode_enabled, quiet
from overflow_recorder.statistics.values import Values, values_of

if TYPE_CHECKING:
    import torch


def measure(tensor: torch.Tensor, statistics: Statistics) -> Figures:
    """Read the figures of `tensor`.

    Args:
        tensor: Any tensor: any dtype, layout and subclass. Elements in the host's memory are read where they are;
            a tensor on a device is copied first, which waits for that device (`DeviceBuffer` does not).
        statistics: `extrema` or `full`.

    Returns:
        The figures; all None where the values cannot be had. Never raises.
    """
    try:
        figures = _measure_plain(tensor, statistics)
    except Exception:  # noqa: BLE001 # not as plain as it looked (functorch's tensors have torch.Tensor's class)
        figures = None
    return _measure_any(tensor, statistics) if figures is None else figures


def _measure_plain(tensor: torch.Tensor, statistics: Statistics) -> Figures | None:
    """The way of nearly every tensor: each check costs up to a twentieth of what reading 4,096 elements does."""
    if type(tensor) not in PLAIN or function_mode_enabled():
        return None
    form = FORMATS.get(tensor.dtype)
    if form is None or not tensor.is_cpu:
        return None
    size = tensor.numel()
    if not size:
        return EMPTY[statistics]
    if not tensor.is_contiguous():
        return _measure_strided(tensor, statistics)
    address, offset = storage_address(tensor), tensor.storage_offset()
    # Memory may have been given back while its tensors live on (FSDP's parameters between two uses).
    if not address or tensor.untyped_storage().nbytes() < (offset + size) * form.width:
        return None
    array = np.frombuffer(ADDRESSES, form.source, size, address + offset * form.width)
    figures = extrema((array,), form) if size <= form.piece else _extrema(array, form)
    if figures.posinf_count != figures.neginf_count and tensor.is_neg():
        figures = negated(figures)
    return figures if statistics == "extrema" else add_moments(figures, pieces(array), form)


def _measure_any(tensor: torch.Tensor, statistics: Statistics) -> Figures:
    try:
        with quiet():
            values = values_of(tensor, may_wait=True)
            return UNKNOWN if values is None else _measure_values(values, statistics)
    except Exception:  # noqa: BLE001 # a tensor that cannot be read has no figures, and training goes on
        return UNKNOWN


def _measure_values(values: Values, statistics: Statistics) -> Figures:
    tensor = values.tensor if values.mask is None else values.tensor[values.mask]
    figures = _measure_strided(tensor.cpu(), statistics) if tensor.numel() else EMPTY[statistics]
    return with_zeros(figures, values.zeros, tensor.numel()) if values.zeros else figures


def _measure_strided(tensor: torch.Tensor, statistics: Statistics) -> Figures:
    """Figures of a strided host tensor with at least one element, in whatever order its elements lie."""
    form = FORMATS.get(tensor.dtype)
    if form is None:
        read, form, repeats = packed(tensor)
        figures = extrema(read(), form)
    else:
        array, repeats = elements(tensor, form.source)
        read = partial(pieces, array)
        figures = _extrema(array, form)
    if figures.posinf_count != figures.neginf_count and tensor.is_neg():
        figures = negated(figures)
    if statistics == "full":
        figures = add_moments(figures, read(), form)
    return repeated(figures, repeats) if repeats > 1 else figures


def _extrema(array: Array, form: Format) -> Figures:
    return parallel_extrema(array, form) if is_large(array, form) else extrema(pieces(array), form)
