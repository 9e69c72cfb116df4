"""Arrow columns as numpy arrays, numbers as they are and names as codes, and numpy arrays as Arrow's.

Both ways go by the buffers. Arrow's own conversions, ``pa.array`` and ``to_numpy``, import pandas where that is
installed: half a second and tens of MiB, in the middle of a training or before an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence


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
    """Return an Arrow array of numbers as its values, anything where null, and which are null (None: none)."""
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


def number_array(values: npt.NDArray[Any], absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return integers or floats, shape [n], as an Arrow array that keeps their memory alive; those absent are null."""
    present = None if absent is None else _bits(~absent)
    buffers = [present, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def bit_array(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Return bools as an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def text_array(texts: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array of type string."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(one) for one in encoded], out=offsets[1:])
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
