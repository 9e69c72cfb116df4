"""Which numbers of a run were kept: ranges and their gaps, in memory that does not grow with the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

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


@dataclass(frozen=True)
class Kept:
    """The numbers of frames or batches that are in a trace."""

    count: int
    first: int | None
    """None where there are none."""
    last: int | None
    missing: int
    """Numbers from 0 to the end of the run that are not there."""
    gap_count: int
    gaps: tuple[Gap, ...]
    """The first ``MOST_GAPS`` of them."""


@dataclass
class KeptBuilder:
    """Collects numbers that come in order, by arrays or by whole ranges."""

    count: int = 0
    first: int | None = None
    last: int | None = None
    missing: int = 0
    gap_count: int = 0
    gaps: list[Gap] = field(default_factory=list)

    def add_range(self, first: int, last: int) -> None:
        """Add every number from ``first`` to ``last``."""
        if self.last is not None:
            first = max(first, self.last + 1)
        if first > last:
            return
        self._add_gap(0 if self.last is None else self.last + 1, first - 1)
        self.count += last - first + 1
        self.first = first if self.first is None else self.first
        self.last = last

    def add_numbers(self, numbers: npt.NDArray[np.int64]) -> None:
        """Add the numbers of an int64 array of shape [n], in any order and with repetitions.

        Numbers up to the last one added before are taken as known: a trace is in order.
        """
        distinct: npt.NDArray[Any] = _distinct(numbers)
        if self.last is not None:
            distinct = distinct[np.searchsorted(distinct, self.last, side="right") :]
        if not len(distinct):
            return
        jumps = np.flatnonzero(np.diff(distinct) > 1)
        self._add_gap(0 if self.last is None else self.last + 1, int(distinct[0]) - 1)
        listed = jumps[: max(0, MOST_GAPS - len(self.gaps))]
        self.gaps += [Gap(int(distinct[at]) + 1, int(distinct[at + 1]) - 1) for at in listed]
        self.gap_count += len(jumps)
        self.missing += int(distinct[-1]) - int(distinct[0]) + 1 - len(distinct)
        self.count += len(distinct)
        self.first = int(distinct[0]) if self.first is None else self.first
        self.last = int(distinct[-1])

    def finish(self, total: int | None = None) -> Kept:
        """Return what was collected.

        Args:
            total: How many numbers the whole run had, where that is known: those after the last kept one are a gap too.
        """
        if total is not None:
            self._add_gap(0 if self.last is None else self.last + 1, total - 1)
        return Kept(self.count, self.first, self.last, self.missing, self.gap_count, tuple(self.gaps))

    def _add_gap(self, first: int, last: int) -> None:
        if first > last:
            return
        if len(self.gaps) < MOST_GAPS:
            self.gaps.append(Gap(first, last))
        self.gap_count += 1
        self.missing += last - first + 1


def _distinct(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """``np.unique``, without its sort where the numbers are in order already, as those of a trace are."""
    steps = np.diff(numbers)
    if len(numbers) and (steps >= 0).all():
        return np.concatenate([numbers[:1], numbers[1:][steps > 0]])
    return np.unique(numbers)
