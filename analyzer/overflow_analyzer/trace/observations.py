"""Earlier and other observations of a tensor, and where in a rank's trace to begin reading frames."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from overflow_analyzer.format.arrays import Integers, numbers, rows_where
from overflow_analyzer.format.columns import COUNT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.trace.nonfinite_rows import RowKey
    from overflow_analyzer.trace.rank_trace import RankTrace


LOSS_SCALE: Final = "loss_scale"
"""The context of the row, of role value, that says a GradScaler is in use."""

_END: Final = 2**63 - 1
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
    """Return the latest recorded observations of one tensor before a frame, at most ``limit``, the oldest first.

    Fewer come back where the trace is so large that looking further would take long.
    """
    found: list[Observation] = []
    rows = 0
    for tables in _backwards(rank, _COLUMNS, before):
        latest: deque[Observation] = deque(maxlen=limit)
        for table in tables:
            latest.extend(_observations_at(table, rows_where(table, **key._asdict())[-limit:]))
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
    figures = (*_MOMENT, "finite_abs_max")
    return [
        Observation(**{name: row[name] for name in figures}, nonfinite=any(map(row.get, COUNT_COLUMNS))) for row in rows
    ]


def loss_scale_in(rank: RankTrace, batch: int) -> bool:
    """Whether a loss scale was recorded in a batch: then steps on inf gradients are skipped, and they mean nothing."""
    tables = rank.tables(["role", "context"], batch=batch)
    return any(len(rows_where(table, role="value", context=LOSS_SCALE)) for table in tables)


def last_moment(rank: RankTrace) -> Observation | None:
    """Return when the last recorded row was; None where the rank has none."""
    for tables in _backwards(rank, _MOMENT, _END):
        rows = [table.slice(table.num_rows - 1).to_pylist()[0] for table in tables if table.num_rows]
        if rows:
            return Observation(**rows[-1], finite_abs_max=None, nonfinite=False)
    return None


def frame_before(rank: RankTrace, frame_number: int, count: int) -> int:
    """Return the number of the ``count``-th recorded frame before a frame; of the first one where there are fewer."""
    found: set[int] = {frame_number}
    for tables in _backwards(rank, ["frame_number"], frame_number):
        latest: deque[int] = deque(maxlen=count + 1)  # one may be told twice, where it lies across two pieces
        for table in tables:
            earlier = numbers(table, "frame_number")
            # Rows stand in order of frames: where the number changes a frame begins.
            latest.extend(earlier[np.flatnonzero(np.diff(earlier, prepend=-1))[-count:]].tolist())
        found.update(latest)
        if len(found) > count:
            break
    return sorted(found)[-count - 1 :][0]


def frames_from(rank: RankTrace, frame_number: int) -> Iterator[Frame]:
    """Yield the frames from a frame on, in order, reading only as far as is asked for."""
    return rank.frames(frames=range(frame_number, _END))


def _backwards(rank: RankTrace, columns: Sequence[str], before: int) -> Iterator[Iterable[pa.Table]]:
    """Yield the rows before a frame, the latest row group first, those of each in order, in pieces."""
    if rank.ring.num_rows:
        yield _until([rank.ring.select(columns)], before)
    for group in reversed(rank.row_groups):
        if group.first_frame < before:
            yield _until(rank.pieces(group, columns), before)


def _until(tables: Iterable[pa.Table], frame_number: int) -> Iterator[pa.Table]:
    """Yield rows up to a frame and read no further; rows of one rank stand in order of frames."""
    for table in tables:
        end = int(np.searchsorted(numbers(table, "frame_number"), frame_number))
        yield table.slice(0, end)
        if end < table.num_rows:
            return
