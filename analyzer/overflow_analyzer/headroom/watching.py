"""Following a living run: each snapshot reads only the frames that came since the one before."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from overflow_analyzer.format.arrays import bit_array, numbers
from overflow_analyzer.format.columns import COUNT_COLUMNS
from overflow_analyzer.format.frames import IGNORED_NOTE
from overflow_analyzer.headroom.tally import COLUMNS, Nearest, Tally
from overflow_analyzer.trace.opening import open_trace

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from overflow_analyzer.format.run_info import HowEnded
    from overflow_analyzer.trace.rank_trace import RankTrace


_NAMES: Final = ("module_name", "role", "context", "dtype")
_COLUMNS: Final = ("frame_number", *COLUMNS)
_MOST_ALARMS: Final = 10_000  # tensors that are remembered as alarmed about


class Headroom(NamedTuple):
    """How close a module came to its format's limit."""

    bits: float
    """Doublings left; below 0 where the value is beyond the limit."""
    module_name: str
    nearest: Nearest


class Alarm(NamedTuple):
    """The first time that a tensor was seen with an inf or nan."""

    rank: int
    batch_number: int
    frame_number: int
    module_name: str
    context: str
    nan_count: int
    inf_count: int


@dataclass(frozen=True)
class Snapshot:
    """The state of a run at one moment."""

    ended: tuple[HowEnded, ...]
    """One a rank."""
    batch_number: int | None
    """The last one seen on any rank."""
    frame_number: int | None
    """The same."""
    changed: bool
    """Whether there are frames that no earlier snapshot had."""
    worst: tuple[Headroom, ...]
    """By least headroom, in what came last."""
    alarms: tuple[Alarm, ...]
    """New in this snapshot."""

    @property
    def living(self) -> bool:
        """Whether a rank is known to be running."""
        return "still running" in self.ended


class Watcher:
    """Reads a trace repeatedly while its run is being recorded.

    Args:
        path: What ``open_trace`` takes.
        most: How many tensors ``Snapshot.worst`` names.
    """

    def __init__(self, path: str | os.PathLike[str], *, most: int = 5) -> None:
        self._path = path
        self._most = most
        self._next_frame: dict[int, int] = {}
        self._alarmed: set[tuple[Any, ...]] = set()
        self._batch_number: int | None = None
        self._worst: tuple[Headroom, ...] = ()

    def snapshot(self) -> Snapshot:
        """Read what is new.

        Raises:
            TraceError: The trace cannot be opened, or a row group cannot be read.
        """
        trace = open_trace(self._path)
        tally = Tally(limits=None)
        alarms: list[Alarm] = []
        changed = False
        for rank in trace.ranks:
            for table in self._new_tables(rank):
                changed = True
                self._batch_number = max(self._batch_number or 0, int(numbers(table, "batch_number").max()))
                tally.add(table)
                alarms += self._new_alarms(table, rank.rank)
        if tally.nearest:
            self._worst = tuple(_worst(tally)[: self._most])
        return Snapshot(
            ended=tuple(rank.ended for rank in trace.ranks),
            batch_number=self._batch_number,
            frame_number=max(self._next_frame.values(), default=0) - 1 if self._next_frame else None,
            changed=changed,
            worst=self._worst,
            alarms=tuple(alarms),
        )

    def _new_tables(self, rank: RankTrace) -> Iterator[pa.Table]:
        """Yield new rows: all that may be non-finite, and the last of those proven finite, for their headroom."""
        start = self._next_frame.get(rank.rank, 0)
        groups = [group for group in rank.row_groups if group.last_frame >= start]
        tables = (rank.read(group, _COLUMNS) for group in groups if group is groups[-1] or not group.finite)
        for table in itertools.chain(tables, [rank.ring.select(_COLUMNS)]):
            frames = numbers(table, "frame_number")
            new = table.filter(bit_array(frames >= start))
            if new.num_rows:
                yield new
                self._next_frame[rank.rank] = int(frames.max()) + 1

    def _new_alarms(self, table: pa.Table, rank: int) -> Iterator[Alarm]:
        for row in _nonfinite_rows(table):
            key = (rank, *(row[name] for name in _NAMES))
            if key not in self._alarmed and len(self._alarmed) < _MOST_ALARMS:
                self._alarmed.add(key)
                inf_count = (row["posinf_count"] or 0) + (row["neginf_count"] or 0)
                numbers = row["batch_number"], row["frame_number"]
                yield Alarm(rank, *numbers, row["module_name"], row["context"], row["nan_count"] or 0, inf_count)


def _nonfinite_rows(table: pa.Table) -> Iterable[dict[str, Any]]:
    nonfinite = np.logical_or.reduce([numbers(table, name, 0) != 0 for name in COUNT_COLUMNS])
    rows = table.filter(bit_array(nonfinite))
    for start in range(0, rows.num_rows, 4096):
        for row in rows.slice(start, 4096).to_pylist():
            if IGNORED_NOTE not in (row["note"] or "").split("; "):
                yield row


def _worst(tally: Tally) -> list[Headroom]:
    found = (
        Headroom(nearest.limits.bits_left(nearest.abs_max), tally.names[number][0], nearest)
        for number, nearest in tally.nearest.items()
    )
    # What is infinite already is an alarm, and what is 0 has all the room there is.
    return sorted((one for one in found if math.isfinite(one.bits)), key=lambda one: (one.bits, one.module_name))
