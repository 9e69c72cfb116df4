"""Figures of tensors in the host's memory, at once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from overflow_recorder.faults import raised_by_signal_handler
from overflow_recorder.statistics.derived import negated, repeated, with_zeros
from overflow_recorder.statistics.figures import EMPTY, UNKNOWN, Figures, Statistics
from overflow_recorder.statistics.formats import FORMATS, Array, Format
from overflow_recorder.statistics.host.extrema import Extremes
from overflow_recorder.statistics.host.moments import add_moments
from overflow_recorder.statistics.host.parallel import is_large, read_in_parallel
from overflow_recorder.statistics.host.quick import measure_quickly
from overflow_recorder.statistics.memory import elements, pieces
from overflow_recorder.statistics.packed import packed
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
        quick = measure_quickly(tensor) if statistics == "extrema" else None
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
