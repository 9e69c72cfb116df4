"""How much two figures may differ before the runs count as different."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MOST_TOLERATED: Final = 0.5
"""A factor of two is never rounding, however deep."""


@dataclass(frozen=True)
class Tolerance:
    """What is taken for rounding.

    Without options a figure may differ by ``slack`` epsilons of the coarser dtype, and by twice that in float32 and
    float64, whose sums depend on their order by more than the last bit. After an earlier difference, even if it was
    only rounding, a figure may differ by more, as in a random walk. The epsilon is then the coarsest of what differed,
    because the output of a bfloat16 layer is no more exact in a float32 one. It is multiplied by the square root of the
    number of frames before it in its batch and of optimizer steps since; for a weight, of the steps alone. Two formats
    may differ by 64 times that once each has computed an update, and a tensor of n elements by the n-th root of 10,000
    times that, because all of a few elements may be small beside what they were summed from; neither holds for weights.
    The least magnitude and the number of zeros are not judged there. A relative difference above a half is never
    tolerated, except in tensors of eight elements or fewer.
    """

    rtol: float | None = None
    """A fixed relative tolerance instead, whatever the dtype and the depth."""
    atol: float = 0.0
    """Differences up to this are always tolerated."""
    exact: bool = False
    """Every figure must be the same bit for bit, and every dtype and class too (nan equals nan)."""
    slack: float = 2.0
    """Epsilons that are tolerated as long as everything before agrees bit for bit."""

    def __post_init__(self) -> None:
        for name, value in (("rtol", self.rtol), ("atol", self.atol), ("slack", self.slack)):
            if value is not None and not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name} must be a finite number, zero or more, not {value!r}")
        if self.exact and (self.rtol is not None or self.atol):
            raise ValueError("exact leaves no room for rtol or atol")
