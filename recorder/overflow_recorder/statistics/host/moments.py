"""What full statistics add: zeros, subnormals, mean and root mean square."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from overflow_recorder.statistics.figures import Figures, means
from overflow_recorder.statistics.memory import scratch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from overflow_recorder.statistics.formats import Array, Format

_CHUNK = scratch.float64.size  # BLAS stays in the calling thread up to 10,000
_ONES = np.ones(_CHUNK)

EXTREME = 400
"""Squares of numbers beyond 2**+-400, summed, could leave float64."""


def add_moments(figures: Figures, pieces: Iterable[Array], form: Format) -> Figures:
    """Read the pieces again and fill in the rest of `figures`.

    Sums are taken in float64 over the finite elements, scaled where their squares would leave its range. Where a
    program has called `torch.set_flush_denormal(True)`, subnormal elements are counted but add nothing to the sums.
    """
    shift = _shift(figures.finite_abs_max, form)
    count = zeros = below_normal = 0
    total = squares = 0.0
    for magnitudes in _finite_magnitudes(pieces, form):
        count += magnitudes.size
        zeros += magnitudes.size - int(np.count_nonzero(magnitudes)) if form.has_zero else 0
        below_normal += int(np.count_nonzero(magnitudes < form.smallest_normal)) if form.smallest_normal else 0
        for numbers in _float64(magnitudes, form, shift):
            total += float(numbers.dot(_ONES[: numbers.size]))  # quicker than sum()
            squares += float(numbers.dot(numbers))
    mean, rms = means(total, squares, count, figures.finite_abs_max, shift)
    subnormals = below_normal - zeros if form.smallest_normal else 0
    return figures._replace(zero_count=zeros, subnormal_count=subnormals, abs_mean=mean, rms=rms)


def _shift(largest: float | None, form: Format) -> int:
    """The power of two that brings the largest element near 1, where it is so far off that this matters."""
    if not largest or form.mantissa_bits != np.finfo(np.float64).nmant:
        return 0
    exponent = math.frexp(largest)[1]
    return max(-1000, min(1000, -exponent)) if abs(exponent) > EXTREME else 0


def _finite_magnitudes(pieces: Iterable[Array], form: Format) -> Iterator[Array]:
    for piece in pieces:
        magnitudes = form.magnitudes(piece, scratch.typed[form.source][: piece.size], form)
        if magnitudes.item(magnitudes.argmax()) > form.limit:
            magnitudes = magnitudes[magnitudes <= form.limit]
        if magnitudes.size:
            yield magnitudes


def _float64(magnitudes: Array, form: Format, shift: int) -> Iterator[Array]:
    """Yield the numbers that finite magnitudes stand for, times 2**shift, a chunk at a time."""
    for start in range(0, magnitudes.size, _CHUNK):
        chunk = magnitudes[start : start + _CHUNK]
        room = scratch.float64[: chunk.size]
        numbers = form.numbers(chunk, room, form)
        if shift:
            with np.errstate(all="ignore"):  # a user's np.seterr(all="raise") is not meant for these numbers
                np.multiply(numbers, math.ldexp(1.0, shift), room)
            numbers = room
        yield numbers
