"""Rows of one trace as numpy columns in the order of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BACKWARD",
    "COUNTS",
    "FIGURES",
    "FORWARD",
    "KEY",
    "MANUAL",
    "RECOMPUTE",
    "UNCOUNTED_WALKS",
    "UNKNOWN",
    "Block",
    "constant",
]

Column = npt.NDArray[Any]

KEY: Final = ("batch", "module", "call", "walk", "role", "context")
"""What makes a row the counterpart of another. ``walk`` is forward, recompute, backward or manual: train and eval are
the same walk."""
FORWARD, RECOMPUTE, BACKWARD, MANUAL = range(4)
UNCOUNTED_WALKS: Final = (RECOMPUTE, BACKWARD)
FIGURES: Final = ("abs_max", "finite_abs_max", "abs_min", "abs_mean", "rms")
COUNTS: Final = ("nan_count", "posinf_count", "neginf_count", "zero_count")
UNKNOWN: Final = -1
"""What stands for null in figures and counts, none of which is ever negative."""


@dataclass(frozen=True)
class Block:
    """Columns of equal length.

    ``KEY``, ``FIGURES`` and ``COUNTS``, and frame, in_batch, step, segment, phase, kind, dtype, shape, ignored. Frames
    of one segment follow each other in the run without a gap.
    """

    columns: dict[str, Column]

    def __len__(self) -> int:
        return len(self.columns["batch"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def take(self, rows: slice | Column) -> Block:
        """Return some rows: a view for a slice, a copy for indices or a mask."""
        if isinstance(rows, slice):
            return Block({name: column[rows] for name, column in self.columns.items()})
        count = int(rows.sum()) if rows.dtype == np.bool_ else len(rows)
        return Block({name: _take(column, rows, count) for name, column in self.columns.items()})

    @staticmethod
    def concatenate(blocks: Sequence[Block]) -> Block:
        """Return the rows of several blocks, one after the other."""
        if len(blocks) == 1:
            return blocks[0]
        return Block({name: np.concatenate([one[name] for one in blocks]) for name in blocks[0].columns})


def _take(column: Column, rows: Column, count: int) -> Column:
    if column.strides == (0,):  # one value broadcast over all rows
        return constant(column[0], count) if len(column) else column[:0]
    return column[rows]


def constant(value: np.generic, count: int) -> Column:
    """Return a column of one value for all rows, which takes the memory of one: a stride of zero tells it."""
    return np.ndarray((count,), value.dtype, np.array(value), strides=(0,))
