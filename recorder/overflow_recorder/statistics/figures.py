"""What is known of one tensor's numbers, and what one asks for."""

from __future__ import annotations

from typing import Literal, NamedTuple

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

    @property
    def finite(self) -> bool:
        """True where the values are known and none is inf or nan (an empty tensor is finite)."""
        return self.nan_count == 0 and self.posinf_count == 0 and self.neginf_count == 0


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
