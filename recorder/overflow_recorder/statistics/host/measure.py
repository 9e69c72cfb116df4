"""Figures of tensors in the host's memory, at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from overflow_recorder.faults import raised_by_signal_handler
from overflow_recorder.statistics.figures import (
    ALL_FINITE,
    EMPTY,
    UNKNOWN,
    Figures,
    Statistics,
    negated,
    repeated,
    with_zeros,
)
from overflow_recorder.statistics.formats import FORMATS, PIECE_BYTES, Array, Format, masked
from overflow_recorder.statistics.host.extrema import Extremes, is_large, read_in_parallel
from overflow_recorder.statistics.host.moments import add_moments
from overflow_recorder.statistics.memory import ADDRESSES, collapse, elements, packed, pieces, scratch, storage_address
from overflow_recorder.statistics.quiet import PLAIN, function_mode_enabled, quiet
from overflow_recorder.statistics.values import Values, values_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_new = tuple.__new__


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
        quick = _measure_quickly(tensor) if statistics == "extrema" else None
        figures = quick or _measure_plain(tensor, statistics)
    except Exception as error:  # not as plain as it looked (functorch's tensors have torch.Tensor's class)
        if raised_by_signal_handler(error):
            raise
        figures = None
    return _measure_any(tensor, statistics) if figures is None else figures


def _measure_plain(tensor: torch.Tensor, statistics: Statistics) -> Figures | None:
    """Figures of a tensor of elements in the host's memory; None where it is something else."""
    if type(tensor) not in PLAIN or function_mode_enabled():
        return None
    form = FORMATS.get(tensor.dtype)
    if form is None or not tensor.is_cpu:
        return None
    return _measure_strided(tensor, statistics) if tensor.numel() else EMPTY[statistics]


def _measure_any(tensor: torch.Tensor, statistics: Statistics) -> Figures:
    try:
        with quiet():
            values = values_of(tensor, may_wait=True)
            return UNKNOWN if values is None else _measure_values(values, statistics)
    except Exception as error:  # a tensor that cannot be read has no figures, and training goes on
        if raised_by_signal_handler(error):
            raise
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
        extremes = Extremes(form)
        extremes.read(read())
        figures = extremes.figures()
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
    extremes = Extremes(form)
    done = read_in_parallel(extremes, array, form) if is_large(array, form) else 0
    extremes.read(pieces(array[done:] if done else array))
    return extremes.figures()


def _measure_quickly(tensor: torch.Tensor) -> Figures | None:
    """Extrema and counts of a plain, dense, finite tensor no larger than a piece; None where it is something else.

    It is the general way, unrolled: a training step takes it a thousand times, and each call of a function that it
    spares is a twentieth of the time of 4,096 elements.

    Raises:
        RuntimeError: The tensor only looks plain (functorch's tensors have torch.Tensor's class, and no memory).
    """
    if type(tensor) not in PLAIN or function_mode_enabled():
        return None
    reader = _READERS.get(tensor.dtype)
    if reader is None or not tensor.is_cpu:
        return None
    # Transposed or permuted, a dense tensor is read in the order of memory.
    if not tensor.is_contiguous() and collapse(tensor.shape, tensor.stride())[1:] != ((1,), 1):
        return None
    read, width, piece = reader
    size = tensor.numel()
    if not 0 < size <= piece:
        return None
    address, offset = storage_address(tensor), tensor.storage_offset()
    # Memory may have been given back while its tensors live on (FSDP's parameters between two uses).
    if not address or tensor.untyped_storage().nbytes() < (offset + size) * width:
        return None
    return read(size, address + offset * width)  # type: ignore[arg-type] # SymInt: fake tensors only, and not these


def _reader(form: Format) -> Callable[[int, int], Figures | None]:
    source, mask, limit, values, prepare = form.source, form.mask, form.limit, form.values, form.magnitudes
    all_finite = ALL_FINITE
    frombuffer, bitwise_and, is_masked = np.frombuffer, np.bitwise_and, form.magnitudes is masked

    def read(size: int, address: int) -> Figures | None:
        elements, room = frombuffer(ADDRESSES, source, size, address), scratch.typed[source][:size]
        magnitudes = bitwise_and(elements, mask, room) if is_masked else prepare(elements, room, form)
        highest = magnitudes.item(magnitudes.argmax())
        if highest > limit:
            return None
        low, high = values(magnitudes.item(magnitudes.argmin()), highest)
        return _new(Figures, (low, high, high) + all_finite)  # noqa: RUF005  Figures(...) or a star would cost more

    return read


# How a dtype is read, its bytes an element, and the elements of a piece.
_READERS = {
    dtype: (_reader(form), form.source.itemsize, PIECE_BYTES // form.source.itemsize)
    for dtype, form in FORMATS.items()
    if form.magnitudes is masked
}
