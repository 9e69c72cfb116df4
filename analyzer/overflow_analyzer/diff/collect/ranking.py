"""Differences by module and by batch, collected as the traces go by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.model import BatchGrowth
from overflow_analyzer.diff.stream.grouping import run_starts

if TYPE_CHECKING:
    from overflow_analyzer.diff.compare.differences import Differences
    from overflow_analyzer.diff.stream.block import Block


_MOST_BATCHES: Final = 100


@dataclass(frozen=True)
class PairedRow:
    """One differing pair, as codes and figures."""

    rank: int
    a: dict[str, Any]
    b: dict[str, Any]
    relative: float
    epsilons: float
    tolerated_epsilons: float
    figure: int
    reshaped: bool

    @classmethod
    def of(cls, rank: int, a: Block, b: Block, differences: Differences, at: int) -> PairedRow:
        """Return the ``at``-th difference of pairs."""
        row = int(differences.rows[at])
        return cls(
            rank,
            {name: column[row].item() for name, column in a.columns.items()},
            {name: column[row].item() for name, column in b.columns.items()},
            float(differences.relative[at]),
            float(differences.epsilons[at]),
            float(differences.tolerated_epsilons[at]),
            int(differences.figure[at]),
            bool(differences.reshaped[at]),
        )


@dataclass
class _Module:
    worst: PairedRow
    first: PairedRow
    last_batch: int
    entries: int = 0


@dataclass
class ModuleRanks:
    """The differences beyond tolerance of each module, by its code."""

    modules: dict[int, _Module] = field(default_factory=dict)

    def add(self, rank: int, a: Block, b: Block, differences: Differences) -> None:
        """Add differences beyond tolerance of pairs in order."""
        if not len(differences.rows):
            return
        modules = a["module"][differences.rows]
        every = np.arange(len(modules))
        first, last = _ends(modules, every)
        counts = np.bincount(modules)
        most = np.full(len(first), -1.0)
        np.maximum.at(most, modules, differences.epsilons)
        worst, _ = _ends(modules, np.flatnonzero(differences.epsilons == most[modules]))
        last_batch = a["batch"][differences.rows[last]]
        figures = (one.tolist() for one in (counts, most, first, worst, last_batch))
        for code, (entries, epsilons, first_row, worst_row, batch) in enumerate(zip(*figures, strict=True)):
            if not entries:
                continue
            known = self.modules.get(code)
            if known is None:
                row = PairedRow.of(rank, a, b, differences, first_row)
                known = self.modules[code] = _Module(row, row, batch)
            if known.worst.epsilons < epsilons:
                known.worst = PairedRow.of(rank, a, b, differences, worst_row)
            known.entries += entries
            known.last_batch = max(known.last_batch, batch)


def _ends(
    modules: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first and the last of ``rows`` of each module code; -1 for codes that are not there."""
    first = np.full(int(modules.max()) + 1, -1)
    last = first.copy()
    # Of several values assigned to one place, the last stays.
    first[modules[rows[::-1]]] = rows[::-1]
    last[modules[rows]] = rows
    return first, last


def _reduced(function: np.ufunc, figures: npt.NDArray[Any], bounds: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Reduce the figures from each bound to the next; 0 where there are none."""
    found = np.zeros(len(bounds), figures.dtype)
    some = np.flatnonzero(np.diff(bounds, append=len(figures)))
    if len(some):
        found[some] = function.reduceat(figures, bounds[some])
    return found


@dataclass
class Growth:
    """The largest difference in each batch of one rank."""

    rank: int
    _batches: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _relative: list[npt.NDArray[np.float64]] = field(default_factory=list)
    _epsilons: list[npt.NDArray[np.float64]] = field(default_factory=list)
    _beyond: list[npt.NDArray[np.int64]] = field(default_factory=list)

    def add(self, batches: npt.NDArray[np.int64], differences: Differences) -> None:
        """Add the differences of pairs whose batch numbers are given, tolerated ones included."""
        if not len(batches):
            return
        starts = run_starts(batches)
        bounds = np.searchsorted(differences.rows, starts)
        self._batches.append(batches[starts])
        self._relative.append(_reduced(np.maximum, differences.relative, bounds))
        self._epsilons.append(_reduced(np.maximum, differences.epsilons, bounds))
        self._beyond.append(_reduced(np.add, differences.beyond.astype(np.int64), bounds))

    @property
    def batches(self) -> int:
        """How many batches were compared."""
        return len(np.unique(np.concatenate(self._batches))) if self._batches else 0

    def points(self) -> list[BatchGrowth]:
        """Return at most a hundred batches: the first, the last, the first that differs, and others between evenly."""
        if not self._batches:
            return []
        batches, inverse = np.unique(np.concatenate(self._batches), return_inverse=True)
        relative, epsilons = np.zeros(len(batches)), np.zeros(len(batches))
        np.maximum.at(relative, inverse, np.concatenate(self._relative))
        np.maximum.at(epsilons, inverse, np.concatenate(self._epsilons))
        beyond = np.bincount(inverse, weights=np.concatenate(self._beyond), minlength=len(batches))
        shown = set(np.linspace(0, len(batches) - 1, min(len(batches), _MOST_BATCHES - 1)).round().astype(int).tolist())
        shown |= set(np.flatnonzero(epsilons > 0)[:1].tolist())
        return [
            BatchGrowth(self.rank, int(batches[at]), float(relative[at]), float(epsilons[at]), int(beyond[at]))
            for at in sorted(shown)
        ]
