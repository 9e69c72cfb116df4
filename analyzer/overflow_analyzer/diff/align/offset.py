"""The shift between the batch numbers of two runs, where their figures make it plain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from overflow_analyzer.diff.stream.block import UNKNOWN
from overflow_analyzer.diff.stream.grouping import run_starts
from overflow_analyzer.format.arrays import numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from overflow_analyzer.trace.rank_trace import RankTrace


_ROWS_OF_A_BATCH: Final = 64
_DISTINCT_FIGURES: Final = 4  # fewer could agree by chance
_MOST_ROWS: Final = 1 << 20
_MOST_BATCHES: Final = 4096
_COLUMNS: Final = ("batch_number", "frame_in_batch", "abs_min", "abs_max")


def find_offset(a: RankTrace, b: RankTrace) -> int | None:
    """Return by how much B's numbers are larger than A's for the same batches.

    The figures of a batch's first entries, weights and data, are its fingerprint. Only one that is unique on both
    sides, and the same on both bit for bit, tells anything. Looked at is the first million rows of each trace.

    Returns:
        0 where batches of the same number agree, else the only shift at which any agree, else None.
    """
    for most_rows in (1, _MOST_ROWS):  # the first row group is enough where the first batches agree
        in_a, in_b = _fingerprints(a, most_rows), _fingerprints(b, most_rows)
        shifts = {in_b[one] - batch for one, batch in in_a.items() if one in in_b}
        if 0 in shifts:
            return 0
    return shifts.pop() if len(shifts) == 1 else None


def _fingerprints(rank: RankTrace, most_rows: int) -> dict[bytes, int]:
    """Return fingerprint -> batch number of the batches that are there from their first frame."""
    found: dict[bytes, int] = {}
    repeated: set[bytes] = set()
    rows = 0
    for table in rank.tables(_COLUMNS):
        for batch, fingerprint in _batches_of(table):
            if found.setdefault(fingerprint, batch) != batch:
                repeated.add(fingerprint)
        rows += table.num_rows
        if rows >= most_rows or len(found) > _MOST_BATCHES:
            break
    return {one: batch for one, batch in found.items() if one not in repeated}


def _batches_of(table: pa.Table) -> Iterator[tuple[int, bytes]]:
    batches, places = numbers(table, "batch_number"), numbers(table, "frame_in_batch")
    figures = np.stack([numbers(table, name, UNKNOWN) for name in ("abs_min", "abs_max")], axis=1)
    starts = run_starts(batches)
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(batches)], strict=True):
        some = figures[start : min(stop, start + _ROWS_OF_A_BATCH)]
        if places[start] == 0 and len(np.unique(some)) >= _DISTINCT_FIGURES:
            yield int(batches[start]), some.tobytes()
