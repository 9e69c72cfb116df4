"""Extrema and exact counts of elements that are read piece by piece."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from overflow_recorder.statistics.figures import Figures
from overflow_recorder.statistics.memory import scratch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overflow_recorder.statistics.formats import Array, Format


class NonFinite:
    """Counts of what is not finite, over the pieces that have some."""

    __slots__ = ("infinite", "nan", "negative")

    def __init__(self, nan: int = 0, infinite: int = 0, negative: int = 0) -> None:
        self.nan = nan
        self.infinite = infinite
        self.negative = negative

    def count(self, piece: Array, magnitudes: Array, form: Format) -> int:
        """Count one piece and return its largest finite magnitude, -1 where it has none."""
        finite = magnitudes[magnitudes <= form.limit]
        infinite = 0
        if form.infinity is not None:
            infinite = int(np.count_nonzero(magnitudes == form.infinity))
            self.infinite += infinite
            self.negative += int(np.count_nonzero(piece == form.negative_infinity))
        self.nan += magnitudes.size - finite.size - infinite
        return int(finite.max()) if finite.size else -1


class Extremes:
    """What has been found so far in a tensor that has at least one element."""

    __slots__ = ("_form", "_high", "_low", "_odd")

    def __init__(self, form: Format) -> None:
        self._form = form
        self._low, self._high = form.limit + 1, -1
        self._odd: NonFinite | None = None

    def add(self, array: Array, start: int, magnitudes: Array, lowest: int, highest: int) -> None:
        """Add a piece of an array whose extreme magnitudes are known; it is read again where it has inf or nan."""
        if highest > self._form.limit:
            self._odd = self._odd or NonFinite()
            highest = self._odd.count(array[start : start + magnitudes.size], magnitudes, self._form)
        self._low, self._high = min(self._low, lowest), max(self._high, highest)

    def read(self, pieces: Iterable[Array]) -> None:
        """Read one-dimensional contiguous arrays of the format's source, none larger than the scratch."""
        form, room = self._form, scratch.typed[self._form.source]
        for piece in pieces:
            magnitudes = form.magnitudes(piece, room[: piece.size], form)
            # argmin and argmax cost a fifth of a reduction's call, and are as quick in the loop.
            lowest, highest = magnitudes.argmin(), magnitudes.argmax()
            self.add(piece, 0, magnitudes, magnitudes.item(lowest), magnitudes.item(highest))

    def figures(self) -> Figures:
        """The figures, without what only full statistics have."""
        return as_figures(self._low, self._high, self._odd, self._form)


def as_figures(low: int, high: int, nonfinite: NonFinite | None, form: Format) -> Figures:
    """Turn magnitudes into figures.

    Args:
        low: The smallest magnitude; anything above `form.limit` where no element is finite.
        high: The largest finite magnitude; -1 where no element is finite.
        nonfinite: The counts; None where every element is finite.
        form: What the magnitudes stand for.
    """
    if nonfinite is None:
        low_value, high_value = form.values(low, high)
        return Figures(low_value, high_value, high_value, 0, 0, 0)
    abs_min, finite_abs_max = (math.inf, None) if high < 0 else form.values(low, high)
    abs_max = math.inf
    if nonfinite.nan:
        abs_min = abs_max = math.nan
    positive = nonfinite.infinite - nonfinite.negative
    return Figures(abs_min, abs_max, finite_abs_max, nonfinite.nan, positive, nonfinite.negative)
