"""What is in a trace: ``summarize(trace) -> Summary``, from footers where they suffice, by column where they do not."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from overflow_analyzer.format.arrays import numbers
from overflow_analyzer.format.columns import FORMAT_VERSION
from overflow_analyzer.trace.gaps import Kept

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

    from overflow_analyzer.format.parts import Progress
    from overflow_analyzer.format.run_info import HowEnded, RunInfo
    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.rank_trace import RankTrace


_CLEAN_ENDS: Final = ("closed", "detected", "aborted")
"""Ends that were asked for; an exception in the loop and what follows it in ``HowEnded`` were not."""


@dataclass(frozen=True)
class RankSummary:
    """The contents of one rank."""

    rank: int
    run: RunInfo
    ended: HowEnded
    rows: int
    frames: Kept
    batches: Kept
    dtypes: tuple[str, ...]
    """Torch's names, sorted."""
    parts: int
    bytes: int
    """Of the files that hold this rank's rows, and those of other ranks where a file has several."""
    ring_rows: int
    """Rows that are in no sealed part: the window of a run that was killed or still lives."""
    dropped_frames: int
    parts_removed: int
    lost: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """The contents of a trace."""

    path: Path
    format_version: int
    world_size: int
    ranks: tuple[RankSummary, ...]
    missing_ranks: tuple[int, ...]
    rows: int
    frames: int
    """Of all ranks together."""
    batches: int
    """Of the rank that has the most."""
    bytes: int
    closed: bool
    """Whether every rank is there and ended as it was asked to: its loop done, stopped early, or at an inf/nan."""
    lost: tuple[str, ...]
    """What could not be read, for all ranks."""
    unknown_columns: tuple[str, ...]
    """What only a later version knows, of all ranks; it is not read."""


def summarize(trace: Trace, progress: Progress = iter) -> Summary:
    """Return what is in a trace.

    Rows and bytes come from the footers, and so do frames and batches where a footer proves them. Of the other row
    groups the columns frame_number and batch_number are read, of each the column dtype, one row group at a time.

    Args:
        trace: An open trace.
        progress: Called with the row groups to read; yields them and may show how far it is.

    Raises:
        DamagedTraceError: A row group cannot be read.
    """
    contiguous = _contiguous_files(trace)
    ranks = tuple(_summarize_rank(rank, contiguous, progress) for rank in trace.ranks)
    files = {footer.path: footer.bytes for rank in trace.ranks for footer in rank.footers}
    return Summary(
        path=trace.path,
        format_version=FORMAT_VERSION,
        world_size=trace.world_size,
        ranks=ranks,
        missing_ranks=trace.missing_ranks,
        rows=sum(rank.rows for rank in ranks),
        frames=sum(rank.frames.count for rank in ranks),
        batches=max(rank.batches.count for rank in ranks),
        bytes=sum(files.values()),
        closed=not trace.missing_ranks and all(rank.ended in _CLEAN_ENDS for rank in ranks),
        lost=(*trace.lost, *(sentence for rank in ranks for sentence in rank.lost)),
        unknown_columns=tuple(dict.fromkeys(name for rank in trace.ranks for name in rank.unknown_columns)),
    )


def _contiguous_files(trace: Trace) -> frozenset[Path]:
    """Files whose footers prove that no frame is missing between the first and the last of each rank in them."""
    spans: dict[Path, int] = defaultdict(int)
    frames = {footer.path: footer.frames for rank in trace.ranks for footer in rank.footers}
    for rank in trace.ranks:
        bounds: dict[Path, tuple[int, int]] = {}
        for group in rank.row_groups:
            first, last = bounds.get(group.path, (group.first_frame, group.last_frame))
            bounds[group.path] = min(first, group.first_frame), max(last, group.last_frame)
        for path, (first, last) in bounds.items():
            spans[path] += last - first + 1
    return frozenset(path for path, span in spans.items() if frames[path] == span)


def _summarize_rank(rank: RankTrace, contiguous: frozenset[Path], progress: Progress) -> RankSummary:
    kept = {"frame_number": Kept(), "batch_number": Kept()}
    dtypes: set[str] = set()
    rows = 0
    for table in _unproven(rank, contiguous, kept, progress):
        rows += table.num_rows
        for name in kept.keys() & table.column_names:
            kept[name].add_numbers(numbers(table, name))
        dtypes.update(pc.unique(table["dtype"]).drop_null().to_pylist())
    end = rank.run.end
    if end and end.frames_seen is not None:
        kept["frame_number"].end_at(end.frames_seen)
    return RankSummary(
        rank=rank.rank,
        run=rank.run,
        ended=rank.ended,
        rows=rows,
        frames=kept["frame_number"],
        batches=kept["batch_number"],
        dtypes=tuple(sorted(dtypes)),
        parts=len({group.path for group in rank.row_groups}),
        bytes=rank.bytes,
        ring_rows=rank.ring.num_rows,
        dropped_frames=rank.dropped_frames,
        parts_removed=end.parts_removed if end else 0,
        lost=rank.lost,
    )


def _unproven(
    rank: RankTrace, contiguous: frozenset[Path], kept: dict[str, Kept], progress: Progress
) -> Iterator[pa.Table]:
    """Add to ``kept`` what row groups prove, and yield the columns that tell the rest."""
    for group in progress(rank.row_groups):
        proven = {}
        if group.path in contiguous:
            proven["frame_number"] = group.first_frame, group.last_frame
        # A minimum and a maximum that stand side by side leave nothing between them to look for.
        if group.last_batch - group.first_batch <= 1:
            proven["batch_number"] = group.first_batch, group.last_batch
        table = rank.read(group, [*(name for name in kept if name not in proven), "dtype"])
        for name, bounds in proven.items():
            kept[name].add_range(*bounds)
        yield table
    yield rank.ring
