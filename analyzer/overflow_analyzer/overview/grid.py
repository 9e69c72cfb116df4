"""Maxima over rows and bins of batches, in memory that does not grow with the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from overflow_analyzer.format.arrays import Integers


Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_FIRST_ROWS: Final = 64


class Grid:
    """Planes of one shape, rows by bins, each cell the largest of what was added to it; nan where nothing was.

    Rows are added as they are met. When the cells become too many, neighbouring bins become one.

    Args:
        batches: How many batches there are.
        most_bins: Bins at most.
        most_cells: Cells of a plane at most, unless there are more rows than that.
    """

    def __init__(self, batches: int, *, most_bins: int, most_cells: int) -> None:
        self.batches = batches
        self.width = max(1, -(-batches // most_bins))
        """Batches in a bin; the last one may have fewer."""
        self.rows = 0
        self.planes: dict[str, Singles] = {}
        self._most_cells = most_cells

    @property
    def bins(self) -> int:
        """Bins of every row."""
        return -(-self.batches // self.width)

    def grow(self, rows: int) -> None:
        """Make room for so many rows."""
        self.rows = max(rows, self.rows)
        while self.rows * self.bins > self._most_cells and self.bins > 1:
            self.width *= 2
            self.planes = {name: halved(plane) for name, plane in self.planes.items()}
        for name, plane in self.planes.items():
            self.planes[name] = self._with_room(plane)

    def _with_room(self, plane: Singles) -> Singles:
        if self.rows <= len(plane):
            return plane
        grown = np.full((max(self.rows, 2 * len(plane), _FIRST_ROWS), self.bins), np.nan, np.float32)
        grown[: len(plane)] = plane
        return grown

    def add(self, name: str, rows: Integers, positions: Integers, values: Doubles) -> None:
        """Raise cells of a plane to values; nan raises nothing.

        Args:
            name: Of the plane, which is made when it is first named.
            rows: The row of each value, below the number that ``grow`` was given.
            positions: Of each value's batch among all batches, from 0; a value before them is left out.
            values: What is added.
        """
        wanted = np.flatnonzero((positions >= 0) & ~np.isnan(values))
        if not len(wanted):
            return
        plane = self.planes.get(name)
        if plane is None:
            plane = self.planes[name] = self._with_room(np.empty((0, self.bins), np.float32))
        cells = rows[wanted] * self.bins + positions[wanted] // self.width
        np.fmax.at(plane.reshape(-1), cells, values[wanted].astype(np.float32))

    def plane(self, name: str) -> Singles | None:
        """Return a plane, shape [rows, bins]; None where nothing was added to it."""
        found = self.planes.get(name)
        return None if found is None else found[: self.rows]


def halved(plane: Singles) -> Singles:
    """Return a plane with each two neighbouring bins as one."""
    if plane.shape[1] % 2:
        plane = np.pad(plane, ((0, 0), (0, 1)), constant_values=np.nan)
    fewer: Singles = np.fmax(plane[:, ::2], plane[:, 1::2])
    return fewer
