"""Columns of a trace's tables as numpy arrays: numbers as they are, names as codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.parts import stream_row_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from overflow_analyzer.parts import RowGroup
    from overflow_analyzer.trace import RankTrace

__all__ = ["Integers", "coded", "numbers", "pieces", "plain", "rows_where"]

_READ_WHOLE: Final = 1 << 16  # rows of a group; larger ones are streamed, in memory that is used again

Integers = npt.NDArray[np.int64]


def pieces(rank: RankTrace, group: RowGroup, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield a rank's rows of one row group in order, a few ten thousand at a time.

    Args:
        rank: Whose rows.
        group: One of its ``row_groups``.
        columns: Names of ``schema.SCHEMA``; None for all.

    Raises:
        DamagedTraceError: Its pages cannot be read.
    """
    if group.rows > _READ_WHOLE and group.first_rank == group.last_rank:
        yield from stream_row_group(group, columns)
    else:
        yield rank.read(group, columns)


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
