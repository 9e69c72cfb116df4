"""A whole trace as one Parquet file, streamed: memory holds one row group, whatever the trace's size."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from overflow_analyzer.convert.outputs import new_file
from overflow_analyzer.format.arrays import number_array, numbers
from overflow_analyzer.format.columns import RANK_FIELD, SCHEMA, SINGLE_FILE_SCHEMA
from overflow_analyzer.format.parts import METADATA_PART_KEY, open_part_writer, part_metadata
from overflow_analyzer.format.run_info import EndInfo
from overflow_analyzer.trace.gaps import Kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from overflow_analyzer.format.run_info import RunInfo
    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.rank_trace import RankTrace

    Progress = Callable[[Iterable[pa.Table], int], Iterable[pa.Table]]


ROWS_A_GROUP: Final = 1 << 18


@dataclass(frozen=True)
class Compacted:
    """What ``compact_trace`` wrote."""

    ranks: int
    frames: int
    rows: int
    bytes: int


def compact_trace(
    trace: Trace,
    output: str | os.PathLike[str] | IO[bytes],
    *,
    overwrite: bool = False,
    rows_a_group: int = ROWS_A_GROUP,
    progress: Progress = lambda tables, _: tables,
) -> Compacted:
    """Write a trace into one Parquet file that is a trace too: the same frames in the same order, each with its rank.

    Args:
        trace: An open trace, of a killed or living run too: then it is what the run had left when it was opened.
        output: The file's name, which is there only once the file is whole; or a stream, which stays open.
        overwrite: Whether a file of that name may be replaced.
        rows_a_group: About how many rows a row group takes. Groups are cut between frames and between ranks, so that
            the statistics of one prove its frames clean.
        progress: Called with a rank's tables to write and about how many they are; yields them and may show how far
            it is.

    Raises:
        OutputError: The name is taken or lies in a trace, or the disk refuses; then no file of that name is left.
        DamagedTraceError: A row group cannot be read.
    """
    metadata = part_metadata([_run_to_keep(rank) for rank in trace.ranks], 0)
    del metadata[METADATA_PART_KEY]  # known at the end only
    rows = frames = 0
    opened = (
        new_file(Path(output), overwrite=overwrite, reading=trace.path)
        if isinstance(output, (str, os.PathLike))
        else contextlib.nullcontext(output)
    )
    with opened as file:
        sink = pa.PythonFile(file, "w")
        with open_part_writer(sink, SINGLE_FILE_SCHEMA, metadata) as writer:
            for rank in trace.ranks:
                seen = Kept()
                total = sum(group.rows for group in rank.row_groups) + int(rank.ring.num_rows)
                for table in progress(_row_groups(rank, rows_a_group), total // rows_a_group + 1):
                    ranks = number_array(np.full(table.num_rows, rank.rank, np.int32))
                    whole = table.unify_dictionaries().append_column(RANK_FIELD, ranks).cast(SINGLE_FILE_SCHEMA)
                    writer.write_table(whole, row_group_size=table.num_rows)
                    seen.add_numbers(numbers(table, "frame_number"))
                    rows += table.num_rows
                frames += seen.count
            writer.add_key_value_metadata({METADATA_PART_KEY: json.dumps({"frames": frames})})
        size = sink.tell()
    return Compacted(len(trace.ranks), frames, rows, size)


def _run_to_keep(rank: RankTrace) -> RunInfo:
    """That a run was killed shows beside its ring alone, so the file has to say it."""
    run = replace(rank.run, rank=rank.rank)
    if run.end is not None or rank.ended != "killed":
        return run
    last = rank.ring["time_ns"][-1].as_py() if rank.ring.num_rows else run.started_ns
    return replace(run, end=EndInfo(how=rank.ended, time_ns=last, frames_dropped=rank.dropped_frames))


def _row_groups(rank: RankTrace, rows_a_group: int) -> Iterator[pa.Table]:
    """Yield the rows in order in tables of about ``rows_a_group`` rows that end with a frame."""
    waiting = SCHEMA.empty_table()
    for table in rank.tables():
        waiting = pa.concat_tables([waiting, table])
        while waiting.num_rows > rows_a_group:
            end = _end_of_frames(waiting, rows_a_group)
            if end is None:
                break
            yield waiting.slice(0, end)
            waiting = waiting.slice(end)
    if waiting.num_rows:
        yield waiting


def _end_of_frames(table: pa.Table, rows_a_group: int) -> int | None:
    """Where to cut: after the last whole frame within the limit; through a frame only where it is absurdly long."""
    starts = np.flatnonzero(np.diff(numbers(table, "frame_number"))) + 1
    within = starts[starts <= rows_a_group]
    if len(within):
        return int(within[-1])
    if len(starts):
        return int(starts[0])
    return rows_a_group if table.num_rows >= 2 * rows_a_group else None
