"""The rows with an inf or nan: what the Parquet statistics prove finite is never read, the rest by its counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from overflow_analyzer.format.arrays import Integers, coded, numbers
from overflow_analyzer.format.columns import COUNT_COLUMNS
from overflow_analyzer.format.frames import is_ignored

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from overflow_analyzer.format.parts import Progress
    from overflow_analyzer.trace.rank_trace import RankTrace


_AT_ONCE: Final = 1024
_COLUMNS: Final = (
    "batch_number", "frame_number", "optimizer_step", "time_ns", "module_name", "role", "context",
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
    for table, at, _ in _nonfinite_in(rank, _COLUMNS, batch, progress):
        columns = [numbers(table, name) for name in _COLUMNS[:4]]
        names = [coded(table, name) for name in _COLUMNS[4:]]
        # Mostly the first few are all that is asked for, and in a run that went on after a nan every row is one.
        for start in range(0, len(at), _AT_ONCE):
            some = at[start : start + _AT_ONCE]
            moments = zip(*(column[some].tolist() for column in columns), strict=True)
            keys = zip(*([values[code] for code in codes[some].tolist()] for codes, values in names), strict=True)
            for (batch_number, frame, step, time_ns), key in zip(moments, keys, strict=True):
                yield NonfiniteRow(batch_number, frame, step, time_ns, RowKey(*key))


def ignored_rows(rank: RankTrace) -> int:
    """Count the rows whose inf or nan was noted as intended; reads what the statistics do not prove finite."""
    return sum(len(intended) for _, _, intended in _nonfinite_in(rank, ()))


def _nonfinite_in(
    rank: RankTrace, columns: Sequence[str], batch: int | None = None, progress: Progress = iter
) -> Iterator[tuple[pa.Table, Integers, Integers]]:
    """Yield tables with the positions of their non-finite rows that are not intended, and of those that are."""
    groups = [group for group in rank.row_groups if not group.finite and group.may_hold(batch)]
    for table in rank.tables([*COUNT_COLUMNS, *columns, "note"], batch=batch, groups=progress(groups)):
        # A null is nan here, which is not above 0.
        at = np.flatnonzero(np.logical_or.reduce([numbers(table, name) > 0 for name in COUNT_COLUMNS]))
        if len(at):
            codes, notes = coded(table, "note")
            # The last position stands for null, whose code is -1.
            intended = np.array([*map(is_ignored, notes), False])[codes[at]]
            yield table, at[~intended], at[intended]
