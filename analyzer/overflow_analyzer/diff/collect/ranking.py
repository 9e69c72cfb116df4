"""Differences by module and by batch, collected as the traces go by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.model import BatchGrowth, FigureDifference, ModuleDifference
from overflow_analyzer.diff.stream.grouping import run_starts

if TYPE_CHECKING:
    from overflow_analyzer.diff.compare.differences import Differences, Pairs
    from overflow_analyzer.diff.naming import Naming


_MOST_BATCHES: Final = 100
_NEVER: Final = np.iinfo(np.int64).min


class _Place(NamedTuple):
    rank: int
    batch_number: int
    role: str
    context: str


class ModuleRanks:
    """The differences beyond tolerance of each module, over all ranks."""

    def __init__(self, naming: Naming) -> None:
        count = len(naming.names["module"].names)
        self._naming = naming
        self._entries = np.zeros(count, np.int64)
        self._last_batch = np.full(count, _NEVER)
        self._epsilons = np.full(count, -1.0)
        self._first: dict[int, _Place] = {}
        self._worst: dict[int, tuple[_Place, FigureDifference]] = {}

    def add(self, rank: int, pairs: Pairs) -> None:
        """Add the differences beyond tolerance of a rank's pairs, in order."""
        beyond = np.flatnonzero(pairs.differences.beyond)
        rows, epsilons = pairs.differences.rows[beyond], pairs.differences.epsilons[beyond]
        modules, batches = pairs.a["module"][rows], pairs.a["batch"][rows]
        self._entries += np.bincount(modules, minlength=len(self._entries))
        last = np.full(len(self._entries), _NEVER)
        last[modules] = batches  # of several values assigned to one place, the last stays
        np.maximum(self._last_batch, last, out=self._last_batch)
        largest = self._epsilons.copy()
        np.maximum.at(largest, modules, epsilons)
        risen = np.flatnonzero((epsilons == largest[modules]) & (epsilons > self._epsilons[modules]))
        self._epsilons = largest
        for code, at in self._first_of_each(modules, np.arange(len(rows))):
            if code not in self._first:
                self._first[code] = self._place(rank, pairs, int(rows[at]))
        for code, at in self._first_of_each(modules, risen):
            place = self._place(rank, pairs, int(rows[at]))
            self._worst[code] = place, self._naming.figure(pairs, int(beyond[at]))

    def _first_of_each(self, modules: npt.NDArray[np.int32], rows: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        """Return the codes of the modules that ``rows`` are of, and of each the first of ``rows``."""
        first = np.full(len(self._entries), -1)
        first[modules[rows[::-1]]] = rows[::-1]
        codes = np.flatnonzero(first >= 0)
        return list(zip(codes.tolist(), first[codes].tolist(), strict=True))

    def _place(self, rank: int, pairs: Pairs, row: int) -> _Place:
        role, context = (self._naming.name(name, pairs.a[name][row]) for name in ("role", "context"))
        return _Place(rank, int(pairs.a["batch"][row]), role, context)

    def differences(self) -> tuple[ModuleDifference, ...]:
        """Return the modules' differences, largest first, then in order of when they began."""
        found = [
            ModuleDifference(
                *self._naming.module_names(code),
                int(self._entries[code]),
                place.rank,
                place.batch_number,
                place.role,
                place.context,
                largest,
                first_batch=self._first[code].batch_number,
                first_rank=self._first[code].rank,
                first_role=self._first[code].role,
                first_context=self._first[code].context,
                last_batch=int(self._last_batch[code]),
            )
            for code, (place, largest) in self._worst.items()
        ]
        return tuple(sorted(found, key=lambda one: (-one.largest.epsilons, one.first_batch, one.module_name)))


def _reduced(function: np.ufunc, figures: npt.NDArray[Any], bounds: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Reduce the figures from each bound to the next; 0 where there are none."""
    sizes = np.diff(bounds, append=len(figures))
    return np.where(sizes > 0, function.reduceat(np.append(figures, 0), bounds), 0)


@dataclass
class Growth:
    """The largest difference in each batch of one rank."""

    rank: int
    _pieces: list[tuple[npt.NDArray[Any], ...]] = field(default_factory=list)
    """Numbers of batches, largest relative difference, the same in epsilons, entries beyond tolerance."""

    def add(self, batches: npt.NDArray[np.int64], differences: Differences) -> None:
        """Add the differences of pairs whose batch numbers are given, tolerated ones included."""
        starts = run_starts(batches)
        bounds = np.searchsorted(differences.rows, starts)
        relative = _reduced(np.maximum, differences.relative, bounds)
        epsilons = _reduced(np.maximum, differences.epsilons, bounds)
        self._pieces.append(
            (batches[starts], relative, epsilons, _reduced(np.add, differences.beyond.astype(np.int64), bounds))
        )

    @property
    def batches(self) -> int:
        """How many batches were compared."""
        return len(np.unique(np.concatenate([piece[0] for piece in self._pieces]))) if self._pieces else 0

    def points(self) -> list[BatchGrowth]:
        """Return at most a hundred batches: the first, the last, the first that differs, and others between evenly."""
        if not self._pieces:
            return []
        numbers, *figures = map(np.concatenate, zip(*self._pieces, strict=True))
        batches, inverse = np.unique(numbers, return_inverse=True)
        relative, epsilons = np.zeros(len(batches)), np.zeros(len(batches))
        np.maximum.at(relative, inverse, figures[0])
        np.maximum.at(epsilons, inverse, figures[1])
        beyond = np.bincount(inverse, weights=figures[2], minlength=len(batches))
        shown = set(np.linspace(0, len(batches) - 1, min(len(batches), _MOST_BATCHES - 1)).round().astype(int).tolist())
        shown |= set(np.flatnonzero(epsilons > 0)[:1].tolist())
        return [
            BatchGrowth(self.rank, int(batches[at]), float(relative[at]), float(epsilons[at]), int(beyond[at]))
            for at in sorted(shown)
        ]
