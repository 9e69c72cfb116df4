"""What is only in one trace, and what has another shape, kind, dtype or mode: collected as the regions go by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.collect.coverage import REASONS
from overflow_analyzer.diff.compare.differences import differ
from overflow_analyzer.diff.stream.grouping import group_rows, run_starts

if TYPE_CHECKING:
    from overflow_analyzer.diff.collect.coverage import Unmatched
    from overflow_analyzer.diff.model import Reason
    from overflow_analyzer.diff.stream.block import Block


_BATCH: Final = REASONS.index("batch")
_WHOLE: Final = -1
_ENTRY: Final = ("module", "role", "context")
What = Literal["shape", "kind", "dtype", "mode"]


@dataclass
class Tally:
    """How often something came, and where."""

    first_batch: int
    last_batch: int
    frames: int = 0
    entries: int = 0
    batches: int = 0
    """Counted for whole batches only."""


@dataclass
class UnmatchedRows:
    """Rows of one rank of one side without a counterpart, by reason, module and entry."""

    tallies: dict[tuple[Reason, int, int, int], Tally] = field(default_factory=dict)
    """(reason, module, role, context) in codes; -1 where it is about whole batches, or about whole frames."""
    _last_batch: int | None = None

    def add(self, unmatched: Unmatched) -> None:
        """Add one region's."""
        rows, of_batch = unmatched.rows, unmatched.reason == _BATCH
        keys = [
            unmatched.reason,
            np.where(of_batch, _WHOLE, rows["module"]),
            np.where(unmatched.whole_frame | of_batch, _WHOLE, rows["role"]),
            np.where(unmatched.whole_frame | of_batch, _WHOLE, rows["context"]),
        ]
        groups = group_rows(keys)
        batches = rows["batch"]
        starts = np.zeros(len(rows), np.int64)
        starts[run_starts(rows["frame"])] = 1
        figures = zip(
            groups.first.tolist(),
            groups.reduce(np.minimum, batches),
            groups.reduce(np.maximum, batches),
            groups.reduce(np.add, starts),
            groups.reduce(np.add, np.ones(len(rows), np.int64)),
            strict=True,
        )
        for row, first_batch, last_batch, frames, entries in sorted(figures):  # in order of first row
            reason, module, role, context = (int(key[row]) for key in keys)
            tally = self.tallies.setdefault((REASONS[reason], module, role, context), Tally(first_batch, last_batch))
            tally.first_batch = min(tally.first_batch, first_batch)
            tally.last_batch = max(tally.last_batch, last_batch)
            tally.frames += frames
            tally.entries += entries
            tally.batches += self._new_batches(batches[of_batch]) if reason == _BATCH else 0

    def _new_batches(self, batches: npt.NDArray[np.int64]) -> int:
        """Count the batches, but for the one that a region before this one ended with."""
        distinct = np.unique(batches)
        again = int(distinct[0]) == self._last_batch
        self._last_batch = int(distinct[-1])
        return len(distinct) - again


@dataclass
class ValuePair:
    """Where a value is another one in B: first, and how often."""

    module: int
    role: int
    context: int
    first_batch: int
    entries: int = 0


@dataclass
class OtherValues:
    """Pairs whose shape, kind, dtype or mode differ."""

    pairs: dict[tuple[What, int, int, tuple[int, ...]], ValuePair] = field(default_factory=dict)
    """(what, code in A, code in B, entry) -> where. Shapes and kinds are told apart by entry (module, role, context);
    of the others, which tend to differ everywhere at once, only the values."""

    def add(self, a: Block, b: Block) -> None:
        """Add one region's pairs."""
        self._add("shape", "shape", a, b, _ENTRY)
        self._add("kind", "kind", a, b, _ENTRY)
        self._add("dtype", "dtype", a, b, ())
        self._add("mode", "phase", a, b, ())

    def _add(self, what: What, name: str, a: Block, b: Block, entry: tuple[str, ...]) -> None:
        rows = np.flatnonzero(differ(a, b, name))
        if not len(rows):
            return
        columns = [a[name][rows], b[name][rows], *(a[key][rows] for key in entry)]
        for first, count in _first_and_count(columns):
            row: Any = rows[first]
            key = (what, int(columns[0][first]), int(columns[1][first]), tuple(int(one[first]) for one in columns[2:]))
            module, role, context = (int(a[name][row]) for name in _ENTRY)
            pair = self.pairs.setdefault(key, ValuePair(module, role, context, int(a["batch"][row])))
            pair.entries += count


def _first_and_count(columns: list[npt.NDArray[Any]]) -> list[tuple[int, int]]:
    """Return the first row and the number of rows of each combination of values."""
    if all((column == column[0]).all() for column in columns):  # one dtype against another, usually
        return [(0, len(columns[0]))]
    groups = group_rows(columns)
    counts = groups.reduce(np.add, np.ones(len(columns[0]), np.int64))
    return sorted(zip(groups.first.tolist(), counts, strict=True))
