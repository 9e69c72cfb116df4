"""One rank of A against one rank of B, from streams of blocks to what is known at their end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.align.regions import Region, regions
from overflow_analyzer.diff.collect.collecting import OtherValues, UnmatchedRows
from overflow_analyzer.diff.collect.coverage import Recorded, Unmatched, unmatched_rows
from overflow_analyzer.diff.collect.ranking import Growth, ModuleRanks
from overflow_analyzer.diff.compare.comparing import ToleranceChecker
from overflow_analyzer.diff.finding_first import FirstOfRank
from overflow_analyzer.diff.stream.grouping import run_starts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_analyzer.diff.align.vocabulary import Shapes
    from overflow_analyzer.diff.collect.over_batches import DifferencesOverBatches
    from overflow_analyzer.diff.compare.differences import Differences
    from overflow_analyzer.diff.compare.tolerance import Tolerance
    from overflow_analyzer.diff.model import Side
    from overflow_analyzer.diff.stream.block import Block
    from overflow_analyzer.diff.stream.reading import SharedNames


Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Selection:
    """Which pairs to compare."""

    batch: int | None = None
    """In A's numbers."""
    modules: frozenset[int] | None = None
    """Codes; None for all."""

    def of(self, block: Block) -> Flags | None:
        """Return which rows to keep; None for all."""
        if self.batch is None and self.modules is None:
            return None
        keep = np.ones(len(block), bool)
        if self.batch is not None:
            keep &= block["batch"] == self.batch
        if self.modules is not None:
            keep &= np.isin(block["module"], list(self.modules))
        return keep


@dataclass
class RankAnalysis:
    """Everything that is collected of one pair of ranks."""

    rank_a: int
    rank_b: int
    names: SharedNames
    shapes: tuple[Shapes, Shapes]
    """Of A and of B."""
    tolerance: Tolerance
    selection: Selection
    modules: ModuleRanks
    """Shared by all ranks."""
    values: OtherValues
    """Shared by all ranks."""
    over_batches: DifferencesOverBatches | None
    """Shared by all ranks."""
    growth: Growth = field(init=False)
    first: FirstOfRank = field(init=False)
    unmatched_a: UnmatchedRows = field(default_factory=UnmatchedRows)
    unmatched_b: UnmatchedRows = field(default_factory=UnmatchedRows)
    entries: int = 0
    frames: int = 0
    differing: int = 0
    tolerated: int = 0

    def __post_init__(self) -> None:
        self.growth = Growth(self.rank_a)
        self._last_frame: int | None = None
        self._checker = ToleranceChecker(self.tolerance, self.names.dtypes, self.names.roles, self.shapes)

    def run(self, a: Iterator[Block], b: Iterator[Block], recorded_a: Recorded, recorded_b: Recorded) -> None:
        """Read both streams to their end."""
        names = self.names
        recorded = recorded_a.roles & recorded_b.roles
        self.first = FirstOfRank(self.rank_a, names.modules, names.roles, names.contexts, recorded)
        for region in regions(a, b):
            self._add(region, recorded_a, recorded_b)

    def _add(self, region: Region, recorded_a: Recorded, recorded_b: Recorded) -> None:
        a, b = region.paired()
        unmatched: list[tuple[Side, Unmatched]] = []
        for side, found, into in (
            ("a", unmatched_rows(region, recorded_b, of_a=True), self.unmatched_a),
            ("b", unmatched_rows(region, recorded_a, of_a=False), self.unmatched_b),
        ):
            kept = self._kept_unmatched(found)
            if kept is not None:
                into.add(kept)
                unmatched.append((side, kept))  # type: ignore[arg-type]  # mypy widens the literals of the tuple above
        coarseness = self._checker.coarseness
        differences = self._checker.compare(a, b)
        keep = self.selection.of(a)
        if keep is not None:
            a, b, differences = a.take(keep), b.take(keep), differences.among(keep)
        self._count(a, differences)
        self.first.look(a, b, differences, unmatched, coarseness)
        self.values.add(a, b)
        self.growth.add(a["batch"], differences)
        if self.over_batches is not None:
            self.over_batches.add(a, differences)
        self.modules.add(self.rank_a, a, b, differences.take(differences.beyond))

    def _kept_unmatched(self, unmatched: Unmatched | None) -> Unmatched | None:
        keep = None if unmatched is None else self.selection.of(unmatched.rows)
        if unmatched is None or keep is None:
            return unmatched
        if not keep.any():
            return None
        return unmatched.take(keep)

    def _count(self, a: Block, differences: Differences) -> None:
        self.entries += len(a)
        if len(a):
            self.frames += len(run_starts(a["frame"])) - int(a["frame"][0] == self._last_frame)
            self._last_frame = int(a["frame"][-1])
        self.differing += int(differences.beyond.sum())
        self.tolerated += int((~differences.beyond).sum())
