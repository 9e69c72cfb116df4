"""Rows with the same values, found without a Python object a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence


_SEED: Final = 0x6A0
_FACTORS: Final = np.random.default_rng(_SEED).integers(0, 2**63, 16, dtype=np.uint64) * 2 + 1


@dataclass(frozen=True)
class Groups:
    """Rows in groups of the same values."""

    order: npt.NDArray[np.int64]
    """All rows, those of a group together and in their own order."""
    starts: npt.NDArray[np.int64]
    """Where in ``order`` each group begins."""

    @classmethod
    def of_runs(cls, columns: Sequence[npt.NDArray[Any]]) -> Groups:
        """Group rows that follow each other with the same values; the same values further on are another group."""
        return cls(np.arange(len(columns[0])), run_starts(*columns))

    @property
    def first(self) -> npt.NDArray[np.int64]:
        """The first row of each group."""
        return self.order[self.starts]

    def reduce(self, function: np.ufunc, values: npt.NDArray[Any]) -> list[int]:
        """Return ``function`` reduced over each group's values."""
        reduced: list[int] = function.reduceat(values[self.order], self.starts).tolist() if len(self.starts) else []
        return reduced

    def spread(self, function: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return for each row ``function`` reduced over its group's values."""
        sizes = np.diff(self.starts, append=len(self.order))
        spread = np.empty_like(values)
        spread[self.order] = np.repeat(function.reduceat(values[self.order], self.starts), sizes)
        return spread


def run_starts(*columns: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the rows, the first included, that differ from the row before them in any of the columns."""
    starts = np.zeros(len(columns[0]), bool)
    starts[:1] = True
    for column in columns:
        starts[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(starts)


def group_rows(columns: Sequence[npt.NDArray[Any]]) -> Groups:
    """Group rows by the values of integer columns of equal length.

    Values are told apart by a sum of them times random 64-bit factors: that different ones fall together has a chance
    of about 2**-63 a pair.
    """
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column, factor in zip(columns, _FACTORS, strict=False):
        mixed += column.astype(np.int64).view(np.uint64) * factor
    order = np.argsort(mixed, kind="stable")
    ordered = mixed[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else np.zeros(0, np.int64)
    return Groups(order, starts)
