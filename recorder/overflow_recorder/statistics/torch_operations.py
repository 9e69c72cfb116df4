"""Figures by torch's own operations: any device, any dtype, and no synchronization."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from overflow_recorder.statistics.figures import EMPTY, Decoder, Figures, Statistics, means, repeated, with_zeros
from overflow_recorder.statistics.formats import COMPLEX, FLOAT4, FLOAT4_DTYPE, FORMATS, Array
from overflow_recorder.statistics.host.moments import EXTREME
from overflow_recorder.statistics.memory import collapse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_recorder.statistics.values import Values

_PIECE = 1 << 24  # elements; bounds the device memory that intermediate results take

_WIDE = frozenset({torch.float64, torch.complex128})  # dtypes whose squares may leave float64

_NONE = -1.0  # stands for the largest finite magnitude where no element is finite


class Elements(NamedTuple):
    """The elements of a tensor, ready to be read."""

    flat: torch.Tensor
    mask: torch.Tensor | None
    smallest_normal: float
    """0 for dtypes without subnormals."""


class TorchOperations:
    """The backend that works everywhere.

    A row: abs min, abs max, largest finite magnitude, counts of nan, inf, -inf and all elements; with full statistics
    zeros, subnormals, sum of magnitudes, sum of squares, and the power of two these two are scaled by. On a device
    without float64 the rows are float32: there counts beyond 2**24, 32-bit integers and sums are rounded.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._statistics: Statistics = statistics
        self.columns = 7 if statistics == "extrema" else 12

    def reset(self, rows: torch.Tensor) -> None:
        """Nothing to prepare: a row is written whole."""

    def enqueue(self, values: Values, rows: torch.Tensor, index: int) -> Decoder:
        """See `Backend.enqueue`; call it under `quiet`."""
        elements, repeats = _elements(values)
        lows, highs, finite, *counts = _columns([_extrema(piece, rows.dtype) for piece in _pieces(elements)])
        columns = [lows.amin(), highs.amax(), finite.amax(), *(count.sum() for count in counts)]
        if self._statistics == "full":
            shift = _shift(columns[2], elements)
            moments = _columns([_moments(piece, shift, rows.dtype) for piece in _pieces(elements)])
            columns += [*(column.sum() for column in moments), shift.to(rows.dtype)]
        torch.stack(columns, out=rows.select(0, index).narrow(0, 0, self.columns))
        return partial(_decode, repeats=repeats, zeros=values.zeros, statistics=self._statistics)


def _decode(row: Array, *, repeats: int, zeros: int, statistics: Statistics) -> Figures:
    abs_min, abs_max, finite_abs_max, *counts = row.tolist()
    nan, posinf, neginf, size = (int(count) for count in counts[:4])
    if not size:  # a mask that covers everything
        figures = EMPTY[statistics]
    else:
        figures = Figures(abs_min, abs_max, None if finite_abs_max == _NONE else finite_abs_max, nan, posinf, neginf)
        if statistics == "full":
            figures = _with_moments(figures, counts[4:9], size - nan - posinf - neginf)
    figures = repeated(figures, repeats) if repeats > 1 else figures
    return with_zeros(figures, zeros, size * repeats) if zeros else figures


def _with_moments(figures: Figures, columns: list[float], finite: int) -> Figures:
    zeros, subnormals, total, squares, shift = columns
    mean, rms = means(total, squares, finite, figures.finite_abs_max, int(shift))
    return figures._replace(zero_count=int(zeros), subnormal_count=int(subnormals), abs_mean=mean, rms=rms)


def _elements(values: Values) -> tuple[Elements, int]:
    tensor = values.tensor
    part = COMPLEX[tensor.dtype][1] if tensor.dtype in COMPLEX else tensor.dtype
    form = FLOAT4 if tensor.dtype == FLOAT4_DTYPE else FORMATS[part]
    smallest_normal = form.values(form.smallest_normal, form.smallest_normal)[0] if form.smallest_normal else 0.0
    if values.mask is not None:
        return Elements(tensor.reshape(-1), values.mask.reshape(-1), smallest_normal), 1
    sizes, strides, repeats = collapse(tensor.shape, tensor.stride())
    distinct = tensor.as_strided(sizes, strides, tensor.storage_offset())  # a dense tensor, transposed or not, flat
    return Elements(distinct.reshape(-1), None, smallest_normal), repeats


def _pieces(elements: Elements) -> Iterator[Elements]:
    flat, mask, smallest_normal = elements
    for start in range(0, flat.numel(), _PIECE):
        length = min(_PIECE, flat.numel() - start)
        part = None if mask is None else mask.narrow(0, start, length)
        yield Elements(flat.narrow(0, start, length), part, smallest_normal)


def _columns(rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    return torch.stack(rows).unbind(1)


def _numbers(flat: torch.Tensor, work: torch.dtype) -> torch.Tensor:
    """The elements in a floating dtype that holds each of them (64-bit integers: rounded) and that has comparisons."""
    if flat.dtype == FLOAT4_DTYPE:
        return _float4_numbers(flat.view(torch.uint8))
    if flat.is_complex():
        return flat.abs()
    if not flat.is_floating_point():
        return flat.to(work)
    return flat if flat.element_size() > 1 else flat.to(torch.float32)


def _float4_numbers(pairs: torch.Tensor) -> torch.Tensor:
    magnitudes = torch.cat([pairs & 7, (pairs >> 4) & 7])
    significand = (magnitudes & 1).to(torch.float32) / 2
    power = ((magnitudes.to(torch.int32) >> 1) + 126 << 23).view(torch.float32)  # 2**(exponent - 1), by its bits
    return torch.where(magnitudes < FLOAT4.smallest_normal, significand, (1 + significand) * power)


def _extrema(piece: Elements, work: torch.dtype) -> torch.Tensor:
    """The first seven columns, for one piece."""
    numbers, mask = _numbers(piece.flat, work), piece.mask
    magnitudes = numbers.abs()
    nan, posinf, neginf = numbers.isnan(), numbers == math.inf, numbers == -math.inf
    nonfinite = nan | posinf | neginf
    if mask is None:
        low, high = magnitudes.aminmax()
        size = torch.full((), numbers.numel(), dtype=work, device=numbers.device)
    else:
        hidden = mask.logical_not()
        low = magnitudes.masked_fill(hidden, math.inf).amin()
        high = magnitudes.masked_fill(hidden, _NONE).amax()
        nan, posinf, neginf, nonfinite, size = nan & mask, posinf & mask, neginf & mask, nonfinite | hidden, mask.sum()
    finite = magnitudes.masked_fill(nonfinite, _NONE).amax()
    columns = (low, high, finite, nan.sum(), posinf.sum(), neginf.sum(), size)
    return torch.stack([column.to(work) for column in columns])


def _moments(piece: Elements, shift: torch.Tensor, work: torch.dtype) -> torch.Tensor:
    """Zeros, subnormals, sum and sum of squares, for one piece."""
    magnitudes = _numbers(piece.flat, work).abs()
    counted = magnitudes.isfinite() if piece.mask is None else magnitudes.isfinite() & piece.mask
    zeros = (magnitudes == 0) & counted
    subnormals = (magnitudes > 0) & (magnitudes < piece.smallest_normal) & counted
    numbers = magnitudes.masked_fill(counted.logical_not(), 0).to(work)
    if piece.flat.dtype in _WIDE:
        numbers = numbers * ((shift.to(torch.int64) + 1023) << 52).view(torch.float64)  # 2**shift, by its bits
    columns = (zeros.sum(), subnormals.sum(), numbers.sum(), numbers.square().sum())
    return torch.stack([column.to(work) for column in columns])


def _shift(largest: torch.Tensor, elements: Elements) -> torch.Tensor:
    """The power of two that keeps squares of float64 numbers in range; 0 where they are."""
    if elements.flat.dtype not in _WIDE:
        return torch.zeros_like(largest)
    exponent = torch.frexp(largest)[1]
    return exponent.neg().clamp(-1000, 1000).masked_fill(exponent.abs() <= EXTREME, 0)
