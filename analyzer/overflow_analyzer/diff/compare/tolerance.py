"""How much two figures may differ before the runs are said to differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MOST_TOLERATED: Final = 0.5
"""A factor of two is never rounding, however deep."""


@dataclass(frozen=True)
class Tolerance:
    """What is taken for rounding.

    Without options a figure may differ by ``slack`` epsilons of the coarser dtype, and twice that in float32 and
    float64, whose sums depend on their order by more than the last bit. Where something before it differs
    already, if only by rounding, that comes on top, as a random walk does: the epsilon is then the coarsest of what
    differed (what came out of a bfloat16 layer is no more exact in a float32 one), times the square root of the number
    of frames before it in its batch and of optimizer steps since (for a weight: of the steps alone). Never tolerated is
    a relative difference above a half.
    """

    rtol: float | None = None
    """A fixed relative tolerance instead, whatever the dtype and the depth."""
    atol: float = 0.0
    """Differences up to this are always tolerated."""
    exact: bool = False
    """Every figure must be the same bit for bit, and every dtype and class too (nan equals nan)."""
    slack: float = 2.0
    """Epsilons that are tolerated where all before agrees bit for bit."""

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol), ("slack", self.slack)):
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a finite number, zero or more, not {value!r}")
        if self.exact and (self.rtol is not None or self.atol):
            raise ValueError("exact leaves no room for rtol or atol")
