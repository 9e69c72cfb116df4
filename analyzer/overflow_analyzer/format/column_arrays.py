"""Columns of a trace's tables as numpy arrays: numbers as they are, names as codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa


Integers = npt.NDArray[np.int64]


def numbers(table: pa.Table, name: str, null: float = np.nan) -> npt.NDArray[Any]:
    """Return a column of numbers, shape [rows], with ``null`` in place of a null."""
    return _filled(table[name].chunks, table[name].type, null)


def coded(table: pa.Table, name: str) -> tuple[Integers, list[Any]]:
    """Return a column of names as codes (-1 is null) and the names they stand for."""
    column = table[name].unify_dictionaries()
    names = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    return _filled([chunk.indices for chunk in column.chunks], column.type.index_type, null=-1), names


def plain(array: Any) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]:
    """Return an Arrow array of numbers as its values, anything where null, and which are null (None: none).

    Arrow's own conversion imports pandas where that is installed: longer than a whole search takes.
    """
    dtype = _dtype(array.type)
    if not len(array):
        return np.empty(0, dtype), None
    validity, data = array.buffers()
    stop = array.offset + len(array)
    values = np.frombuffer(data, dtype, count=stop)[array.offset :]
    if validity is None or not array.null_count:
        return values, None
    present = np.unpackbits(np.frombuffer(validity, np.uint8), count=stop, bitorder="little")[array.offset :]
    return values, present == 0


def _filled(chunks: Sequence[pa.Array], type_: pa.DataType, null: float) -> npt.NDArray[Any]:
    found = [np.empty(0, _dtype(type_))] if len(chunks) != 1 else []  # a single chunk is not copied
    for values, absent in map(plain, chunks):
        found.append(values if absent is None else np.where(absent, null, values))
    return found[0] if len(found) == 1 else np.concatenate(found)


def _dtype(type_: pa.DataType) -> np.dtype[Any]:
    return np.dtype("f8" if str(type_) == "double" else str(type_))  # the others are called alike


def rows_where(table: pa.Table, **names: str) -> Integers:
    """Return the positions of the rows whose name columns have these values."""
    found: Integers = np.arange(table.num_rows)
    for column, value in names.items():
        codes, values = coded(table, column)
        some = codes[found]
        matching = [some == code for code, one in enumerate(values) if one == value]
        found = found[np.logical_or.reduce(matching)] if matching else found[:0]
    return found
