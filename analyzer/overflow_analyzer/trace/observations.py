"""Earlier and other observations of a tensor, and where in a rank's trace to begin reading frames."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from overflow_analyzer.format.arrays import Integers, numbers, rows_where
from overflow_analyzer.format.columns import COUNT_COLUMNS
from overflow_analyzer.format.frames import frames_from_tables

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.trace.nonfinite_rows import Moment, RowKey
    from overflow_analyzer.trace.rank_trace import RankTrace


LOSS_SCALE: Final = "loss_scale"
"""The context of the row, of role value, that says a GradScaler is in use."""

_END: Final = 2**63 - 1
_ROWS_AT_ONCE: Final = 256  # become Python objects: often no more are asked for
_MOST_ROWS: Final = 2_000_000  # that are looked through for one tensor's past
_MOMENT: Final = ("batch_number", "frame_number", "optimizer_step")
_COLUMNS: Final = ("module_name", "role", "context", *_MOMENT, "finite_abs_max", *COUNT_COLUMNS)


@dataclass(frozen=True)
class Observation:
    """One recorded observation of a tensor: when, and its largest finite magnitude."""

    batch_number: int
    frame_number: int
    optimizer_step: int
    finite_abs_max: float | None
    """None where no element was finite or nothing could be measured."""
    nonfinite: bool


def observations(rank: RankTrace, key: RowKey, *, before: int, limit: int = 64) -> tuple[Observation, ...]:
    """Return the latest recorded observations of one tensor before a frame, the oldest first.

    Args:
        rank: One rank's trace.
        key: Which tensor.
        before: A frame number; only earlier frames count.
        limit: How many at most. Fewer come back where the trace is so large that looking further would take long.
    """
    found: list[Observation] = []
    rows = 0
    for tables in _backwards(rank, _COLUMNS, before):
        latest: deque[Observation] = deque(maxlen=limit)
        for table in _until(tables, before):
            at = rows_where(table, **key._asdict())
            latest.extend(_observations_at(table, at[numbers(table, "frame_number")[at] < before][-limit:]))
            rows += table.num_rows
        found = [*latest, *found]
        if len(found) >= limit or rows >= _MOST_ROWS:
            break
    return tuple(found[-limit:])


def observations_in_batch(rank: RankTrace, key: RowKey, batch: int) -> tuple[Observation, ...]:
    """Return the recorded observations of one tensor in one batch, in order."""
    tables = rank.tables(_COLUMNS, batch=batch)
    return tuple(one for table in tables for one in _observations_at(table, rows_where(table, **key._asdict())))


def _observations_at(table: pa.Table, at: Integers) -> list[Observation]:
    rows = [row for position in at.tolist() for row in table.slice(position, 1).to_pylist()]
    return [
        Observation(
            row["batch_number"],
            row["frame_number"],
            row["optimizer_step"],
            row["finite_abs_max"],
            nonfinite=any(row[name] for name in COUNT_COLUMNS),
        )
        for row in rows
    ]


def loss_scale_in(rank: RankTrace, batch: int) -> bool:
    """Whether a loss scale was recorded in a batch: then steps on inf gradients are skipped, and they mean nothing."""
    tables = rank.tables(["role", "context"], batch=batch)
    return any(len(rows_where(table, role="value", context=LOSS_SCALE)) for table in tables)


def last_moment(rank: RankTrace) -> Moment | None:
    """Return when the last recorded row was; None where the rank has none."""
    for tables in _backwards(rank, _MOMENT, _END):
        last: Moment | None = None
        for table in tables:
            last = _last(table) or last
        if last is not None:
            return last
    return None


def _last(table: pa.Table) -> Moment | None:
    if not table.num_rows:
        return None
    batch, frame, step = (table[name][-1].as_py() for name in _MOMENT)
    return Observation(batch, frame, step, None, nonfinite=False)


def frame_before(rank: RankTrace, frame_number: int, count: int) -> int:
    """Return the number of the ``count``-th recorded frame before a frame; of the first one where there are fewer."""
    found: set[int] = {frame_number}
    for tables in _backwards(rank, ["frame_number"], frame_number):
        latest: deque[int] = deque(maxlen=count + 1)  # one may be told twice, where it lies across two pieces
        for table in _until(tables, frame_number):
            some = numbers(table, "frame_number")
            earlier = some[some < frame_number]
            # Rows stand in order of frames: where the number changes a frame begins.
            latest.extend(earlier[np.flatnonzero(np.diff(earlier, prepend=-1))[-count:]].tolist())
        found.update(latest)
        if len(found) > count:
            break
    return sorted(found)[-count - 1 :][0]


def frames_from(rank: RankTrace, frame_number: int) -> Iterator[Frame]:
    """Yield the frames from a frame on, in order, reading only as far as is asked for."""
    return frames_from_tables(_tables_from(rank, frame_number))


def _tables_from(rank: RankTrace, frame_number: int) -> Iterator[pa.Table]:
    for group in rank.row_groups:
        if group.last_frame >= frame_number:
            for table in rank.pieces(group):
                yield from _cut(table, frame_number)
    yield from _cut(rank.ring, frame_number)


def _cut(table: pa.Table, frame_number: int) -> Iterator[pa.Table]:
    """Yield a few rows at a time from a frame on; rows of one rank stand in order of frames."""
    start = int(np.searchsorted(numbers(table, "frame_number"), frame_number))
    return (table.slice(at, _ROWS_AT_ONCE) for at in range(start, table.num_rows, _ROWS_AT_ONCE))


def _until(tables: Iterable[pa.Table], frame_number: int) -> Iterator[pa.Table]:
    """Yield tables up to the one in which a frame begins; rows of one rank stand in order of frames."""
    for table in tables:
        yield table
        if table.num_rows and table["frame_number"][-1].as_py() >= frame_number:
            return


def _backwards(rank: RankTrace, columns: Sequence[str], before: int) -> Iterator[Iterable[pa.Table]]:
    """Yield what may hold frames before a frame, the latest row group first, the rows of each in order."""
    if rank.ring.num_rows:
        yield [rank.ring]
    for group in reversed(rank.row_groups):
        if group.first_frame < before:
            yield rank.pieces(group, columns)
