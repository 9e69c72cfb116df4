"""Rows with the same values, found without a Python object a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable


Indices = npt.NDArray[np.int64]

_LARGEST: Final = 2**62


def run_starts(*columns: npt.NDArray[Any]) -> Indices:
    """Return the rows, the first included, that differ from the row before them in any of the columns."""
    starts = np.zeros(len(columns[0]), bool)
    starts[:1] = True
    for column in columns:
        starts[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(starts)


def pack_keys(columns: Iterable[npt.NDArray[Any]], rows: int) -> Indices:
    """Return one int64 a row, equal where all signed columns are, shape [rows]."""
    packed: Indices = np.zeros(rows, np.int64)
    size = 1
    for column in columns:
        values = column
        least, most = (int(values.min()), int(values.max())) if rows else (0, 0)
        radix = most - least + 1
        if size * radix > _LARGEST:
            packed = np.unique(packed, return_inverse=True)[1].astype(np.int64)
            size = int(packed.max(initial=0)) + 1
        if size * radix > _LARGEST:
            values, least = np.unique(values, return_inverse=True)[1], 0
            radix = int(values.max(initial=0)) + 1
        if radix > 1:
            packed *= radix
            packed += values
            packed -= least
            size *= radix
    return packed
