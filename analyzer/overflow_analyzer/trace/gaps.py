"""Which numbers of a run were kept: ranges and their gaps, in memory that does not grow with the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


MOST_GAPS: Final = 1000
"""Gaps that are listed one by one; what is beyond is only counted."""


@dataclass(frozen=True)
class Gap:
    """A range of numbers of which none was kept."""

    first: int
    last: int


@dataclass
class Kept:
    """The numbers of frames or batches that are in a trace; added in order, by arrays or by whole ranges."""

    count: int = 0
    first: int | None = None
    """None where there are none."""
    last: int | None = None
    missing: int = 0
    """Numbers from 0 to the end of the run that are not there."""
    gap_count: int = 0
    gaps: list[Gap] = field(default_factory=list)
    """The first ``MOST_GAPS`` of them."""

    def add_range(self, first: int, last: int) -> None:
        """Add every number from ``first`` to ``last``."""
        if self.last is not None:
            first = max(first, self.last + 1)
        if first <= last:
            self._add(first, last, last - first + 1)

    def add_numbers(self, numbers: npt.NDArray[np.int64]) -> None:
        """Add the numbers of an int64 array of shape [n], in any order and with repetitions.

        Numbers up to the last one added before are taken as known: a trace is in order.
        """
        # ``np.unique``, without its sort where the numbers are in order already, as those of a trace are.
        steps = np.diff(numbers)
        in_order = bool((steps >= 0).all())
        distinct = np.concatenate([numbers[:1], numbers[1:][steps > 0]]) if in_order else np.unique(numbers)
        if self.last is not None:
            distinct = distinct[np.searchsorted(distinct, self.last, side="right") :]
        if not len(distinct):
            return
        self._add(int(distinct[0]), int(distinct[-1]), len(distinct))
        jumps = np.flatnonzero(np.diff(distinct) > 1)
        listed = jumps[: max(0, MOST_GAPS - len(self.gaps))]
        self.gaps += [Gap(int(distinct[at]) + 1, int(distinct[at + 1]) - 1) for at in listed]
        self.gap_count += len(jumps)

    def end_at(self, total: int) -> None:
        """Say how many numbers the whole run had: those after the last kept one are a gap too."""
        first = 0 if self.last is None else self.last + 1
        if first < total:
            if len(self.gaps) < MOST_GAPS:
                self.gaps.append(Gap(first, total - 1))
            self.gap_count += 1
            self.missing += total - first

    def _add(self, first: int, last: int, count: int) -> None:
        self.end_at(first)
        self.count += count
        self.missing += last - first + 1 - count
        self.first = first if self.first is None else self.first
        self.last = last
