"""What is known of one tensor's numbers, what one asks for, and what follows from the figures of a part of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from overflow_analyzer.format.columns import COLUMNS
from overflow_recorder.statistics.formats import Array

Statistics = Literal["extrema", "full"]
"""`extrema`: the extrema and the exact non-finite counts. `full`: zeros, subnormals, mean and rms as well."""


class Figures(NamedTuple):
    """The figures of one tensor, named and ordered as the trace's columns are.

    A named tuple, because one is built for every tensor that is measured. Everything is None for a tensor without
    values (meta, fake) or whose values cannot be had exactly.
    """

    abs_min: float | None
    """`tensor.abs().min()`: nan if any element is nan, inf included. None: no elements, or no values."""
    abs_max: float | None
    """`tensor.abs().max()`, in the same way."""
    finite_abs_max: float | None
    """The largest magnitude of the finite elements; None where no element is finite."""
    nan_count: int | None
    """Elements that are nan (complex: whose magnitude is nan). None: no values."""
    posinf_count: int | None
    """Elements that are +inf (complex: whose magnitude is inf)."""
    neginf_count: int | None
    """Elements that are -inf."""
    zero_count: int | None = None
    """Elements that are +0 or -0. From here on None unless the statistics are `full`."""
    subnormal_count: int | None = None
    """Elements that are subnormal in the tensor's own dtype; 0 for integers."""
    abs_mean: float | None = None
    """Mean magnitude of the finite elements, accumulated in float64; None where no element is finite."""
    rms: float | None = None
    """Root mean square of the finite elements, accumulated in float64; None where no element is finite."""
    neginf_row_count: int | None = None
    """Rows of the last dimension that are -inf throughout; see `masked_rows`."""


Decoder = Callable[[Array], Figures]
"""Turns a tensor's row of a device buffer, once it has reached the host, into figures. It holds no tensor."""

UNKNOWN = Figures(None, None, None, None, None, None)
"""The figures of a tensor whose values cannot be had."""

EXTREMA = Figures._fields[:3]
ALL_FINITE = Figures(None, None, None, nan_count=0, posinf_count=0, neginf_count=0)[len(EXTREMA) :]
"""What stands behind the extrema where every element is finite and the statistics are not `full`."""

EMPTY: dict[Statistics, Figures] = {
    "extrema": Figures(None, None, None, 0, 0, 0),
    "full": Figures(None, None, None, 0, 0, 0, zero_count=0, subnormal_count=0),
}
"""The figures of a tensor without elements."""

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
