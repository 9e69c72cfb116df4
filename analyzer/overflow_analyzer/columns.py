"""Columns of a trace's tables as numpy arrays: numbers as they are, names as codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Integers", "coded", "numbers", "rows_where"]

Integers = npt.NDArray[np.int64]


def numbers(table: pa.Table, name: str) -> npt.NDArray[Any]:
    """Return a column of numbers; a null is nan, and then integers are float64."""
    values: npt.NDArray[Any] = table[name].to_numpy()
    return values


def coded(table: pa.Table, name: str) -> tuple[Integers, list[Any]]:
    """Return a column of names as codes (-1 is null) and the names they stand for."""
    column = table[name].unify_dictionaries().combine_chunks()
    codes: Integers = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return codes, column.dictionary.to_pylist()


def rows_where(table: pa.Table, **names: str) -> Integers:
    """Return the positions of the rows whose name columns have these values."""
    wanted = np.ones(table.num_rows, dtype=bool)
    for column, value in names.items():
        codes, values = coded(table, column)
        wanted &= np.isin(codes, [code for code, one in enumerate(values) if one == value])
    return np.flatnonzero(wanted)
