"""What is only in one trace, and what has another shape, kind, dtype or mode: collected as the regions go by."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.collect.coverage import REASONS
from overflow_analyzer.diff.model import OnlyIn, StructureDifference
from overflow_analyzer.diff.stream.block import differ
from overflow_analyzer.diff.stream.grouping import pack_keys, run_starts

if TYPE_CHECKING:
    from overflow_analyzer.diff.collect.coverage import Unmatched
    from overflow_analyzer.diff.model import Reason, Side
    from overflow_analyzer.diff.naming import Naming
    from overflow_analyzer.diff.stream.block import Block


_BATCH: Final = REASONS.index("batch")
_WHOLE: Final = -1
_ENTRY: Final = ("module", "role", "context")
What = Literal["shape", "kind", "dtype", "mode"]
_COLUMNS: Final[tuple[tuple[What, str, tuple[str, ...]], ...]] = (
    ("shape", "shape", _ENTRY),
    ("kind", "kind", _ENTRY),
    ("dtype", "dtype", ()),
    ("mode", "phase", ()),
)
"""Shapes and kinds are told apart by entry; of the others, which tend to differ everywhere at once, only the values."""


@dataclass
class _Tally:
    first_batch: int
    last_batch: int
    frames: int = 0
    entries: int = 0
    batches: int = 0
    """Counted for whole batches only."""


@dataclass
class UnmatchedRows:
    """Rows of one rank of one side without a counterpart, by reason, module and entry."""

    side: Side
    rank: int
    tallies: dict[tuple[Reason, int, int, int], _Tally] = field(default_factory=dict)
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
        _, first, group, entries = np.unique(
            pack_keys(keys, len(rows)), return_index=True, return_inverse=True, return_counts=True
        )
        batches = rows["batch"]
        first_batches, last_batches = batches[first], batches[first]
        np.minimum.at(first_batches, group, batches)
        np.maximum.at(last_batches, group, batches)
        frames = np.bincount(group[run_starts(rows["frame"])], minlength=len(first))
        for at in np.argsort(first).tolist():  # in order of first row
            reason, module, role, context = (int(key[first[at]]) for key in keys)
            first_batch, last_batch = int(first_batches[at]), int(last_batches[at])
            tally = self.tallies.setdefault((REASONS[reason], module, role, context), _Tally(first_batch, last_batch))
            tally.first_batch = min(tally.first_batch, first_batch)
            tally.last_batch = max(tally.last_batch, last_batch)
            tally.frames += int(frames[at])
            tally.entries += int(entries[at])
            tally.batches += self._new_batches(batches[of_batch]) if reason == _BATCH else 0

    def _new_batches(self, batches: npt.NDArray[np.int64]) -> int:
        """Count the batches, but for the one that a region before this one ended with."""
        distinct = np.unique(batches)
        again = int(distinct[0]) == self._last_batch
        self._last_batch = int(distinct[-1])
        return len(distinct) - again

    def only_in(self, naming: Naming) -> list[OnlyIn]:
        """Return them in the numbers and names of their side."""
        shift = naming.offset if self.side == "b" else 0
        return [
            OnlyIn(
                reason=reason,
                rank=self.rank,
                module_name=None if module == _WHOLE else naming.module(module, self.side),
                module_class=None if module == _WHOLE else naming.classes.get(module, ""),
                role=None if role == _WHOLE else naming.name("role", role),
                context=None if role == _WHOLE else naming.name("context", context),
                first_batch=tally.first_batch + shift,
                last_batch=tally.last_batch + shift,
                batches=tally.batches if module == _WHOLE else None,
                frames=tally.frames,
                entries=tally.entries,
            )
            for (reason, module, role, context), tally in self.tallies.items()
        ]


class OtherValues:
    """Pairs whose shape, kind, dtype or mode differ."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._first: dict[tuple[int | str, ...], StructureDifference] = {}
        self._entries: Counter[tuple[int | str, ...]] = Counter()

    def add(self, a: Block, b: Block) -> None:
        """Add one region's pairs."""
        for what, name, entry in _COLUMNS:
            rows = np.flatnonzero(differ(a, b, name))
            if len(rows):
                values = (block[name][rows].astype(np.int64) for block in (a, b))
                columns = [*values, *(a[key][rows] for key in entry)]
                for first, count in _first_and_count(columns):
                    key = (what, *(int(column[first]) for column in columns))
                    self._entries[key] += count
                    if key not in self._first:
                        self._first[key] = self._difference(what, name, a, b, int(rows[first]))

    def _difference(self, what: What, column: str, a: Block, b: Block, row: int) -> StructureDifference:
        naming = self._naming
        return StructureDifference(
            what,
            naming.name(column, a[column][row], "a") or "none",
            naming.name(column, b[column][row], "b") or "none",
            naming.module(a["module"][row]),
            naming.name("role", a["role"][row]),
            naming.name("context", a["context"][row]),
            int(a["batch"][row]),
            entries=0,
        )

    def differences(self) -> list[StructureDifference]:
        """Return each with the number of its entries, in order of when it was first seen."""
        return [replace(first, entries=self._entries[key]) for key, first in self._first.items()]


def _first_and_count(columns: list[npt.NDArray[Any]]) -> list[tuple[int, int]]:
    """Return the first row and the number of rows of each combination of values, in order of the first row."""
    if all((column == column[0]).all() for column in columns):  # one dtype against another, usually
        return [(0, len(columns[0]))]
    _, first, counts = np.unique(pack_keys(columns, len(columns[0])), return_index=True, return_counts=True)
    return sorted(zip(first.tolist(), counts.tolist(), strict=True))
