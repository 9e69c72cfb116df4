"""Rows of one trace as numpy columns in the order of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from overflow_analyzer.format.columns import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence


Column = npt.NDArray[Any]

KEY: Final = ("batch", "module", "call", "walk", "role", "context")
"""What makes a row the counterpart of another. ``walk`` is forward, recompute, backward or manual: train and eval are
the same walk."""
FORWARD, RECOMPUTE, BACKWARD, MANUAL = range(4)
UNCOUNTED_WALKS: Final = (RECOMPUTE, BACKWARD)
_COMPARED: Final = sorted(
    (column for column in COLUMNS if column.compared is not None), key=lambda column: column.compared or 0
)
FIGURES: Final = tuple(column.name for column in _COMPARED if pa.types.is_floating(column.type))
COUNTS: Final = tuple(column.name for column in _COMPARED if column.name not in FIGURES)
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
        """Return some rows: a view for a slice or indices that follow each other, else a copy."""
        if not isinstance(rows, slice):
            rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
            if len(rows) and (rows[1:] == rows[:-1] + 1).all():
                rows = slice(int(rows[0]), int(rows[-1]) + 1)
        taken: dict[int, Column] = {}  # what is one array under two names stays one
        for column in self.columns.values():
            if id(column) not in taken:
                taken[id(column)] = column[rows] if isinstance(rows, slice) else looked_up(column, rows)
        return Block({name: taken[id(column)] for name, column in self.columns.items()})

    @staticmethod
    def concatenate(blocks: Sequence[Block]) -> Block:
        """Return the rows of several blocks, one after the other."""
        if len(blocks) == 1:
            return blocks[0]
        joined: dict[tuple[int, ...], Column] = {}  # what is one array under two names stays one
        columns = {name: [one[name] for one in blocks] for name in blocks[0].columns}
        for pieces in columns.values():
            if (key := tuple(map(id, pieces))) not in joined:
                joined[key] = _concatenated(pieces)
        return Block({name: joined[tuple(map(id, pieces))] for name, pieces in columns.items()})


def _concatenated(pieces: Sequence[Column]) -> Column:
    filled = [piece for piece in pieces if len(piece)]
    if filled and all(is_constant(piece) and piece[0] == filled[0][0] for piece in filled):
        return constant(filled[0][0], sum(map(len, filled)))
    return np.concatenate(pieces)


def looked_up(values: Column, at: Column) -> Column:
    """Return ``values[at]``: one value for all rows where either has but one."""
    if len(at) and (is_constant(values) or is_constant(at)):
        return constant(values[at[0]], len(at))
    return values[at]


def constant(value: np.generic, count: int) -> Column:
    """Return a column of one value for all rows, which takes the memory of one."""
    return np.ndarray((count,), value.dtype, np.array(value), strides=(0,))


def is_constant(column: Column) -> bool:
    """Whether a column was made as one value for all rows; one that only happens to be all the same is not."""
    return column.strides == (0,)


def differ(a: Block, b: Block, name: str) -> npt.NDArray[np.bool_]:
    """Return which rows have another value in a column; the blocks are of one length."""
    one, other = a[name], b[name]
    if is_constant(one) and is_constant(other) and len(one):
        return constant(one[0] != other[0], len(one))
    different: npt.NDArray[np.bool_] = one != other
    return different


def unlike(a: Block, b: Block, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows have another value in any of the columns; nan is unlike nan."""
    found = np.zeros(len(a), bool)
    for name in columns:
        if not is_repeated(name, a, b):
            found |= differ(a, b, name)
    return found


def is_repeated(name: str, a: Block, b: Block) -> bool:
    """Whether a figure is another one under a second name, as where everything is finite."""
    return name == "finite_abs_max" and a[name] is a["abs_max"] and b[name] is b["abs_max"]
