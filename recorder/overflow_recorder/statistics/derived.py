"""Figures of a tensor that follow from those of a part of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from overflow_analyzer.format.columns import COLUMNS

if TYPE_CHECKING:
    from overflow_recorder.statistics.figures import Figures


_COUNTS: Final = tuple(column.name for column in COLUMNS if column.of == "figure" and column.repeated)


def negated(figures: Figures) -> Figures:
    """The figures of the negative of a tensor."""
    return figures._replace(posinf_count=figures.neginf_count, neginf_count=figures.posinf_count)


def repeated(figures: Figures, times: int) -> Figures:
    """The figures of a tensor that has each element so many times."""
    known = {name: getattr(figures, name) for name in _COUNTS}
    return figures._replace(**{name: count * times for name, count in known.items() if count is not None})


def with_zeros(figures: Figures, zeros: int, size: int) -> Figures:
    """The figures of a tensor that has zeros beside the `size` elements measured."""
    if figures.nan_count is None or figures.posinf_count is None or figures.neginf_count is None:
        return figures
    finite = size - figures.nan_count - figures.posinf_count - figures.neginf_count
    nan = figures.nan_count > 0
    extended = figures._replace(
        abs_min=math.nan if nan else 0.0,
        abs_max=figures.abs_max or 0.0,
        finite_abs_max=figures.finite_abs_max or 0.0,
    )
    if figures.zero_count is None:
        return extended
    share = finite / (finite + zeros)
    return extended._replace(
        zero_count=figures.zero_count + zeros,
        abs_mean=(figures.abs_mean or 0.0) * share,
        rms=(figures.rms or 0.0) * math.sqrt(share),
    )


def means(
    total: float, squares: float, count: int, largest: float | None, shift: int
) -> tuple[float, float] | tuple[None, None]:
    """Mean magnitude and root mean square of `count` finite elements.

    Args:
        total: Sum of the magnitudes, times 2**shift.
        squares: Sum of the squares of the magnitudes times 2**shift.
        count: Elements summed.
        largest: The largest of them; rounding must not carry a mean above it, for there float64 may end.
        shift: See `total`.
    """
    if largest is None:
        return None, None
    ceiling = math.ldexp(largest, shift)
    mean, rms = min(total / count, ceiling), min(math.sqrt(squares / count), ceiling)
    return math.ldexp(mean, -shift), math.ldexp(rms, -shift)
