"""Rank after rank of A against one of B, from streams of blocks to what is known at their end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.align.regions import Region, regions
from overflow_analyzer.diff.collect.collecting import OtherValues, UnmatchedRows
from overflow_analyzer.diff.collect.coverage import Recorded, unmatched_rows
from overflow_analyzer.diff.collect.ranking import Growth, ModuleRanks
from overflow_analyzer.diff.compare.comparing import ToleranceChecker
from overflow_analyzer.diff.compare.differences import Pairs
from overflow_analyzer.diff.finding_first import FirstOfRank
from overflow_analyzer.diff.naming import Naming
from overflow_analyzer.diff.stream.grouping import run_starts
from overflow_analyzer.diff.stream.reading import BlockBuilder, read_blocks
from overflow_analyzer.format.columns import ROLES

if TYPE_CHECKING:
    from overflow_analyzer.diff.align.plan import Plan
    from overflow_analyzer.diff.collect.coverage import Unmatched
    from overflow_analyzer.diff.collect.over_batches import DifferencesOverBatches
    from overflow_analyzer.diff.compare.tolerance import Tolerance
    from overflow_analyzer.diff.model import Side
    from overflow_analyzer.diff.stream.block import Block
    from overflow_analyzer.diff.stream.reading import SharedNames
    from overflow_analyzer.trace.rank_trace import RankTrace


@dataclass(frozen=True)
class Selection:
    """Which pairs to compare."""

    batch: int | None = None
    """In A's numbers."""
    modules: frozenset[int] | None = None
    """Codes; None for all."""

    def of(self, block: Block) -> npt.NDArray[np.bool_] | None:
        """Return which rows to keep; None for all."""
        if self.batch is None and self.modules is None:
            return None
        keep = np.ones(len(block), bool)
        if self.batch is not None:
            keep &= block["batch"] == self.batch
        if self.modules is not None:
            keep &= np.isin(block["module"], list(self.modules))
        return keep


class RankFindings:
    """What is collected of one pair of ranks."""

    def __init__(self, a: RankTrace, b: RankTrace, naming: Naming) -> None:
        self.a, self.b = a, b
        self.recorded: dict[Side, Recorded] = {"a": _recorded(a, naming.names), "b": _recorded(b, naming.names)}
        in_both = self.recorded["a"].roles & self.recorded["b"].roles
        self.first = FirstOfRank((a.rank, b.rank), naming, in_both)
        self.growth = Growth(a.rank)
        self.unmatched: dict[Side, UnmatchedRows] = {
            "a": UnmatchedRows("a", a.rank),
            "b": UnmatchedRows("b", b.rank),
        }
        self.last_frame: int | None = None


def _recorded(rank: RankTrace, names: SharedNames) -> Recorded:
    roles = rank.run.options.get("roles")
    known = [one for one in roles if one in ROLES] if isinstance(roles, (list, tuple)) else ROLES
    return Recorded(frozenset(map(names["role"].code, known)), rank.ended in ("closed", "aborted"))


class Comparison:
    """Compares pairs of ranks, one after the other, and collects what is said of all of them."""

    def __init__(
        self, plan: Plan, tolerance: Tolerance, selection: Selection, over_batches: DifferencesOverBatches | None
    ) -> None:
        self.plan, self.tolerance, self.selection = plan, tolerance, selection
        self._over_batches = over_batches
        if over_batches is not None:
            over_batches.begin(plan.names["module"].names)
        self.builder_a = BlockBuilder(plan.names, plan.codes_a)
        self.builder_b = BlockBuilder(plan.names, plan.codes_b, plan.offset)
        self.naming = Naming(plan, {"a": self.builder_a.shapes, "b": self.builder_b.shapes})
        self.modules, self.values = ModuleRanks(self.naming), OtherValues(self.naming)
        self.counts: Counter[str] = Counter(entries=0, frames=0, differing=0, tolerated=0)
        self.ranks: list[RankFindings] = []

    def add(self, a: RankTrace, b: RankTrace) -> None:
        """Read both to their end.

        Raises:
            DamagedTraceError: A row group cannot be read.
            UnseenModuleError: A module was not there when modules were matched.
        """
        found = RankFindings(a, b, self.naming)
        self.ranks.append(found)
        checker = ToleranceChecker(self.tolerance, self.naming)
        full = all(one.run.options.get("statistics") != "extrema" for one in (a, b))
        blocks_a, blocks_b = (
            read_blocks(rank, builder, batch=self.selection.batch, full_statistics=full)
            for rank, builder in ((a, self.builder_a), (b, self.builder_b))
        )
        for region in regions(blocks_a, blocks_b):
            unmatched = self._unmatched(region, found)
            coarseness = checker.coarseness
            one, other = region.paired()
            pairs = Pairs(one, other, checker.compare(one, other))
            keep = self.selection.of(one)
            if keep is not None:
                pairs = pairs.take(keep)
            self._count(pairs, found)
            found.first.look(pairs, unmatched, coarseness)
            found.growth.add(pairs.a["batch"], pairs.differences)
            if self._over_batches is not None:
                self._over_batches.add(pairs.a, pairs.differences)
            self.modules.add(a.rank, pairs)
            self.values.add(pairs.a, pairs.b)

    def _unmatched(self, region: Region, into: RankFindings) -> list[Unmatched]:
        found = unmatched_rows(region, into.recorded["b"], "a"), unmatched_rows(region, into.recorded["a"], "b")
        kept = [(one, self.selection.of(one.rows)) for one in found if one is not None]
        unmatched = [one if keep is None else one.take(keep) for one, keep in kept if keep is None or keep.any()]
        for one in unmatched:
            into.unmatched[one.side].add(one)
        return unmatched

    def _count(self, pairs: Pairs, of: RankFindings) -> None:
        frames, beyond = pairs.a["frame"], pairs.differences.beyond
        differing = int(beyond.sum())
        self.counts.update(entries=len(frames), differing=differing, tolerated=len(beyond) - differing)
        if len(frames):
            self.counts["frames"] += len(run_starts(frames)) - int(frames[0] == of.last_frame)
            of.last_frame = int(frames[-1])
