"""The largest difference of each module over batches, gathered while two traces are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from overflow_analyzer.overview.grid import Grid, Singles

if TYPE_CHECKING:
    from overflow_analyzer.diff.compare.differences import Differences
    from overflow_analyzer.diff.stream.block import Block
    from overflow_analyzer.format.arrays import Integers


_MOST_BINS: Final = 2048
_MOST_CELLS: Final = 1 << 22


class DifferenceMap(NamedTuple):
    """The largest difference of modules over bins of batches."""

    modules: tuple[str, ...]
    """Names in A, of those that were compared."""
    width: int
    """Recorded batches of A in a bin."""
    epsilons: Singles
    """Shape [modules, bins]: 0 where all agree bit for bit, nan where nothing was compared. Of finite differences."""
    apart: Singles
    """The same shape: 1 where a tensor has an inf or nan in one run alone, nan elsewhere."""


class DifferencesOverBatches:
    """Gathers a ``DifferenceMap``; an argument of ``diff_traces``.

    Args:
        batches: The recorded batches of A, ascending.
    """

    def __init__(self, batches: Integers) -> None:
        self._batches = batches
        self._names: list[str] = []
        self.begin([])

    def begin(self, names: list[str]) -> None:
        """Forget what was gathered.

        Args:
            names: By module code; the list may still grow.
        """
        self._names = names
        self._grid = Grid(len(self._batches), most_bins=_MOST_BINS, most_cells=_MOST_CELLS)

    def add(self, a: Block, differences: Differences) -> None:
        """Take in pairs by their rows of A, with how those that are not equal differ."""
        modules: Integers = a["module"].astype(np.int64)
        positions = np.minimum(np.searchsorted(self._batches, a["batch"]), len(self._batches) - 1)
        self._grid.grow(len(self._names))
        self._grid.add("epsilons", modules, positions, np.zeros(len(a)))
        rows, epsilons = differences.rows, differences.epsilons
        finite = np.where(np.isfinite(epsilons), epsilons, np.nan)
        self._grid.add("epsilons", modules[rows], positions[rows], finite)
        self._grid.add("apart", modules[rows], positions[rows], np.where(differences.nonfinite, 1.0, np.nan))

    def finish(self) -> DifferenceMap:
        """Return what was gathered."""
        nothing = np.full((self._grid.rows, self._grid.bins), np.nan, np.float32)
        planes = [self._grid.plane(name) for name in ("epsilons", "apart")]
        epsilons, apart = (nothing if plane is None else plane for plane in planes)
        compared = np.flatnonzero(~np.isnan(epsilons).all(axis=1)).tolist()
        names = tuple(self._names[code] for code in compared)
        return DifferenceMap(names, self._grid.width, epsilons[compared], apart[compared])
