"""A trace's rows in formats that are not Parquet, streamed: CSV and JSON lines (``tensorboard`` has the third)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from overflow_analyzer.format.arrays import number_array
from overflow_analyzer.format.columns import SINGLE_FILE_SCHEMA
from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.strict_json import to_json_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from overflow_analyzer.trace.opening import Trace

    Progress = Callable[[Iterable[pa.Table], int], Iterable[pa.Table]]


_ROWS_A_PIECE: Final = 4096


def ranked_tables(
    trace: Trace, *, rank: int | None = None, progress: Progress = lambda tables, _: tables
) -> Iterator[pa.Table]:
    """Yield a trace's rows, rank after rank, in ``SINGLE_FILE_SCHEMA``, a few thousand rows at a time.

    Args:
        trace: An open trace.
        rank: Only this rank; None for all.
        progress: Called with a rank's tables and about how many they are; yields them and may show how far it is.

    Raises:
        NotRecordedError: The rank is not in the trace.
        DamagedTraceError: A row group cannot be read.
    """
    for one in trace.ranks if rank is None else (trace.rank(rank),):
        for table in progress(one.tables(), len(one.row_groups) + 1):
            for start in range(0, table.num_rows, _ROWS_A_PIECE):
                some = table.slice(start, _ROWS_A_PIECE)
                ranks = number_array(np.full(some.num_rows, one.rank, np.int32))
                yield pa.table([*some.columns, ranks], schema=SINGLE_FILE_SCHEMA)


def csv_pieces(tables: Iterable[pa.Table]) -> Iterator[str]:
    """Yield CSV, the header first: null is an empty field, shapes are written ``[4, 64]``, control characters escaped.

    Args:
        tables: Of ``ranked_tables``.
    """
    header = True
    for table in tables:
        columns = [_csv_column(table[field.name], field) for field in SINGLE_FILE_SCHEMA]
        sink = pa.BufferOutputStream()
        csv.write_csv(pa.table(columns, names=SINGLE_FILE_SCHEMA.names), sink, csv.WriteOptions(include_header=header))
        header = False
        yield sink.getvalue().to_pybytes().decode()


def _csv_column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if pa.types.is_dictionary(field.type):
        return pa.chunked_array([_escaped(chunk) for chunk in column.chunks], pa.string())
    if pa.types.is_list(field.type):
        joined = pc.binary_join(column.cast(pa.list_(pa.string())), ", ")
        return pc.binary_join_element_wise("[", joined, "]", "")
    return column


def _escaped(names: pa.DictionaryArray) -> pa.Array:
    texts = [None if text is None else escape(text) for text in names.dictionary.to_pylist()]
    return pa.array(texts, pa.string()).take(names.indices)


def json_lines(tables: Iterable[pa.Table]) -> Iterator[str]:
    """Yield one line of strict JSON a row, keys as the columns: non-finite numbers are "inf", "-inf" and "nan".

    Args:
        tables: Of ``ranked_tables``.
    """
    rows: Iterator[dict[str, Any]] = (row for table in tables for row in table.to_pylist())
    return map(to_json_line, rows)
