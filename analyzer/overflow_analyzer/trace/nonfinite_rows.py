"""The rows with an inf or nan: what the Parquet statistics prove finite is never read, the rest by its counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from overflow_analyzer.format.arrays import Integers, coded, numbers
from overflow_analyzer.format.columns import COUNT_COLUMNS
from overflow_analyzer.format.frames import IGNORED_NOTE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from overflow_analyzer.format.parts import Progress
    from overflow_analyzer.trace.rank_trace import RankTrace


_AT_ONCE: Final = 1024
_COLUMNS: Final = (
    "batch_number", "frame_number", "optimizer_step", "time_ns", "module_name", "role", "context", "note",
)  # fmt: skip


class RowKey(NamedTuple):
    """Which tensor of which module a row is about, in every batch the same."""

    module_name: str
    role: str
    context: str


class NonfiniteRow(NamedTuple):
    """A row with an inf or nan that is not intended."""

    batch_number: int
    frame_number: int
    optimizer_step: int
    time_ns: int
    key: RowKey

    @property
    def step(self) -> tuple[int, int]:
        """The optimizer step it belongs to, or the batch where steps were not counted."""
        return self.optimizer_step, self.batch_number


def nonfinite_rows(rank: RankTrace, *, batch: int | None = None, progress: Progress = iter) -> Iterator[NonfiniteRow]:
    """Yield the rows with an inf or nan, in order, those noted as intended left out.

    Args:
        rank: One rank's trace.
        batch: Only rows of this batch.
        progress: Called with the row groups to read; yields them and may show how far it is.

    Raises:
        DamagedTraceError: A row group that may hold one cannot be read.
    """
    for table in _suspects(rank, [*COUNT_COLUMNS, *_COLUMNS], batch, progress):
        yield from _rows_at(table, _nonfinite_positions(table))


def ignored_rows(rank: RankTrace) -> int:
    """Count the rows whose inf or nan was noted as intended; reads what the statistics do not prove finite."""
    tables = _suspects(rank, [*COUNT_COLUMNS, "note"])
    return sum(int(np.count_nonzero(_intended(table)[_nonfinite_positions(table)])) for table in tables)


def _suspects(
    rank: RankTrace, columns: Sequence[str], batch: int | None = None, progress: Progress = iter
) -> Iterator[pa.Table]:
    """Yield the rows that nothing proves finite."""
    groups = [group for group in rank.row_groups if not group.finite and group.may_hold(batch)]
    return rank.tables(columns, batch=batch, groups=progress(groups))


def _nonfinite_positions(table: pa.Table) -> Integers:
    nonfinite = np.zeros(table.num_rows, dtype=bool)
    for name in COUNT_COLUMNS:
        nonfinite |= numbers(table, name) > 0  # a null is nan here, which is not above 0
    return np.flatnonzero(nonfinite)


def _rows_at(table: pa.Table, at: Integers) -> Iterator[NonfiniteRow]:
    if not len(at):
        return
    at = at[~_intended(table)[at]]
    columns = [numbers(table, name) for name in _COLUMNS[:4]]
    names = [coded(table, name) for name in _COLUMNS[4:7]]
    # Mostly the first few are all that is asked for, and in a run that went on after a nan every row is one.
    for start in range(0, len(at), _AT_ONCE):
        some = at[start : start + _AT_ONCE]
        moments = zip(*(column[some].tolist() for column in columns), strict=True)
        keys = zip(*([values[code] for code in codes[some].tolist()] for codes, values in names), strict=True)
        for (batch, frame, step, time_ns), key in zip(moments, keys, strict=True):
            yield NonfiniteRow(batch, frame, step, time_ns, RowKey(*key))


def _intended(table: pa.Table) -> npt.NDArray[np.bool_]:
    codes, notes = coded(table, "note")
    intended = [note is not None and IGNORED_NOTE in note.split("; ") for note in notes]
    # The last position stands for null, whose code is -1.
    return np.array([*intended, False])[codes]
