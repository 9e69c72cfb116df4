"""``open_trace``: a directory of parts and leftover rings, a single file, one rank or many -> ``Trace``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from overflow_analyzer.errors import (
    DamagedTraceError,
    EmptyTraceError,
    NotATraceError,
    NotRecordedError,
    TraceNotFoundError,
)
from overflow_analyzer.frames import Frame, frames_from_tables
from overflow_analyzer.parts import Footer, RowGroup, read_footer, read_row_group
from overflow_analyzer.ring import read_ring
from overflow_analyzer.run_info import HowEnded, RunInfo
from overflow_analyzer.schema import NAMES_FILE, PART_PREFIX, RING_FILE, RUN_FILE, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

try:
    import fcntl
except ImportError:  # Windows: a trace is read there too, only whether its run still lives cannot be told
    fcntl = None  # type: ignore[assignment]

__all__ = ["RankTrace", "Trace", "open_trace"]

_RANK_DIRECTORY = re.compile(r"rank=(\d+)")
_UNKNOWN_RUN = RunInfo(run_id="", rank=0, world_size=1, model_class="", started_ns=0)


@dataclass(frozen=True)
class RankTrace:
    """What one rank left: sealed row groups and rows from a ring, in order of frame_number, no frame twice."""

    rank: int
    run: RunInfo
    ended: HowEnded
    footers: tuple[Footer, ...]
    ring: pa.Table
    """Rows that are in the trace but in no sealed part; empty after a clean close."""
    dropped_frames: int = 0
    """Frames of selected batches that the recorder gave up because the disk was slower than the run."""
    lost: tuple[str, ...] = ()
    """Sentences that say what could not be read."""

    @property
    def row_groups(self) -> tuple[RowGroup, ...]:
        """The sealed row groups that hold rows of this rank, in order of frame_number."""
        groups = (group for footer in self.footers for group in footer.row_groups if group.rows)
        return tuple(
            group
            for group in groups
            if group.first_rank is None or group.first_rank <= self.rank <= (group.last_rank or 0)
        )

    def read(self, group: RowGroup, columns: Sequence[str] | None = None) -> pa.Table:
        """Read this rank's rows of one row group.

        Args:
            group: One of ``row_groups``.
            columns: Names of ``schema.SCHEMA``; None for all.

        Raises:
            DamagedTraceError: Its pages cannot be read.
        """
        if group.first_rank == group.last_rank:
            return read_row_group(group, columns)
        table = read_row_group(group, [*(columns or SCHEMA.names), "rank"])
        return table.filter(pc.equal(table["rank"], self.rank)).drop_columns(["rank"])

    def tables(
        self, columns: Sequence[str] | None = None, *, batch: int | None = None, frames: range | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows in order, a row group at a time, never more than one in memory.

        Args:
            columns: Names of ``schema.SCHEMA``; None for all.
            batch: Only rows of this batch; row groups without it are not read.
            frames: Only rows whose frame_number lies in this range (step 1).
        """
        wanted = None if columns is None else list(dict.fromkeys([*columns, "batch_number", "frame_number"]))
        for group in self.row_groups:
            if batch is not None and not group.first_batch <= batch <= group.last_batch:
                continue
            if frames is not None and (group.last_frame < frames.start or group.first_frame >= frames.stop):
                continue
            yield from _matching(self.read(group, wanted), columns, batch, frames)
        yield from _matching(self.ring, columns, batch, frames)

    def frames(self, *, batch: int | None = None, frames: range | None = None) -> Iterator[Frame]:
        """Yield frames in order; the arguments are those of ``tables``."""
        return frames_from_tables(self.tables(batch=batch, frames=frames))

    @property
    def rows(self) -> int:
        """Rows in the trace; counted by reading only where a file mixes ranks in one row group."""
        mixed = any(group.first_rank != group.last_rank for group in self.row_groups)
        if mixed:
            return sum(table.num_rows for table in self.tables(["frame_number"]))
        return sum(group.rows for group in self.row_groups) + self.ring.num_rows

    @property
    def frame_count(self) -> int:
        """Distinct frames in the trace."""
        if any(footer.frames is None or len(footer.runs) > 1 for footer in self.footers):
            return sum(len(np.unique(table["frame_number"])) for table in self.tables(["frame_number"]))
        return sum(footer.frames or 0 for footer in self.footers) + len(self.ring["frame_number"].unique())

    @property
    def bytes(self) -> int:
        """Bytes of the sealed parts."""
        return sum(footer.bytes for footer in self.footers)


@dataclass(frozen=True)
class Trace:
    """A whole trace: one ``RankTrace`` for each rank that left something."""

    path: Path
    ranks: tuple[RankTrace, ...]
    lost: tuple[str, ...] = field(default=())
    """Sentences about ranks of which nothing could be read."""

    @property
    def world_size(self) -> int:
        """Ranks the run was started with."""
        return max([len(self.ranks), *(one.run.world_size for one in self.ranks)])

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the run that left nothing readable."""
        present = {one.rank for one in self.ranks}
        return tuple(rank for rank in range(min(self.world_size, 1 << 20)) if rank not in present)

    def rank(self, rank: int) -> RankTrace:
        """Return one rank's trace.

        Raises:
            NotRecordedError: The trace has no such rank.
        """
        for one in self.ranks:
            if one.rank == rank:
                return one
        present = ", ".join(str(one.rank) for one in self.ranks)
        raise NotRecordedError(f"{self.path}: has no rank {rank}; the ranks in it are {present}")


def open_trace(path: str | os.PathLike[str]) -> Trace:
    """Open a trace: a directory, one rank's directory, or one Parquet file.

    Nothing is written; a living run can be opened.

    Args:
        path: What ``TraceRecorder`` was given, or a compacted file.

    Returns:
        The trace, with at least one row.

    Raises:
        TraceNotFoundError: Nothing is there, or it may not be read.
        NotATraceError: Something else is there.
        UnknownVersionError: Written in another format version.
        DamagedTraceError: Nothing of it can be read.
        EmptyTraceError: Nothing was recorded.
    """
    where = Path(path)
    try:
        trace = _open_directory(where) if where.is_dir() else _open_file(where)
    except FileNotFoundError:
        raise TraceNotFoundError(f"{where}: there is no such file or directory") from None
    except OSError as error:
        raise TraceNotFoundError(f"{where}: cannot be read ({error.strerror or error})") from None
    if not any(one.ring.num_rows or one.row_groups for one in trace.ranks):
        raise _nothing_in(trace)
    return trace


def _nothing_in(trace: Trace) -> DamagedTraceError | EmptyTraceError:
    lost = [*trace.lost, *(sentence for one in trace.ranks for sentence in one.lost)]
    if lost:
        return DamagedTraceError(f"{trace.path}: nothing of it can be read: {lost[0]}")
    ended = trace.ranks[0].ended if trace.ranks else "unknown"
    reasons = [one.run.end.reason for one in trace.ranks if one.run.end and one.run.end.reason]
    because = f": {reasons[0]}" if reasons else ""
    return EmptyTraceError(
        f"{trace.path}: nothing was recorded (run {ended}{because}), so nothing can be said about the numbers"
    )


def _open_file(path: Path) -> Trace:
    footer = read_footer(path)
    runs = {run.rank: run for run in footer.runs}
    ranks = sorted(runs or _ranks_in(footer))
    return Trace(path, tuple(_rank_of_file(footer, rank, runs.get(rank)) for rank in ranks))


def _rank_of_file(footer: Footer, rank: int, run: RunInfo | None) -> RankTrace:
    ended: HowEnded = run.end.how if run is not None and run.end is not None else "unknown"
    return RankTrace(rank, run or _UNKNOWN_RUN, ended, (footer,), SCHEMA.empty_table())


def _ranks_in(footer: Footer) -> set[int]:
    """The ranks of a file that another tool rewrote without our metadata."""
    ranks: set[int] = set()
    for group in footer.row_groups:
        if group.first_rank is None:
            ranks.add(0)
        elif group.first_rank == group.last_rank:
            ranks.add(group.first_rank)
        else:
            ranks.update(pc.unique(read_row_group(group, ["rank"])["rank"]).to_pylist())
    return ranks or {0}


def _open_directory(path: Path) -> Trace:
    directories = {
        int(match[1]): one for one in path.iterdir() if (match := _RANK_DIRECTORY.fullmatch(one.name)) and one.is_dir()
    }
    if not directories and (path / RUN_FILE).exists():
        match = _RANK_DIRECTORY.fullmatch(path.absolute().name)
        directories = {int(match[1]) if match else 0: path}
    if not directories:
        raise NotATraceError(f"{path}: a directory, but not a trace: it has no rank=N directory")
    ranks, lost = [], []
    for rank, directory in sorted(directories.items()):
        try:
            ranks.append(_open_rank(rank, directory))
        except DamagedTraceError as error:
            lost.append(str(error))
    if not ranks:
        raise DamagedTraceError(f"{path}: nothing of it can be read: {lost[0]}")
    return Trace(path, tuple(ranks), tuple(lost))


def _open_rank(rank: int, directory: Path) -> RankTrace:
    # The ring is read before the parts are listed: a row that leaves it in between is then in a part, not in neither.
    ring = _read_leftover(directory)
    footers, lost = _read_parts(directory)
    run = _read_run(directory, footers)
    if ring is not None and run.end is None:
        run = replace(run, end=ring.end)
    last_sealed = max((group.last_frame for footer in footers for group in footer.row_groups if group.rows), default=-1)
    return RankTrace(
        rank=rank,
        run=run,
        ended=_how_ended(run, directory),
        footers=tuple(footers),
        ring=SCHEMA.empty_table() if ring is None else ring.kept_after(last_sealed),
        dropped_frames=run.end.frames_dropped if run.end else (ring.dropped_frames if ring else 0),
        lost=(*lost, *(ring.lost if ring else ())),
    )


def _read_leftover(directory: Path) -> Any:
    try:
        return read_ring(directory / RING_FILE, directory / NAMES_FILE)
    except FileNotFoundError:
        return None


def _read_parts(directory: Path) -> tuple[list[Footer], list[str]]:
    footers, lost = [], []
    for path in sorted(directory.glob(f"{PART_PREFIX}*.parquet")):
        try:
            footers.append(read_footer(path))
        except FileNotFoundError:
            continue  # the living run's max_bytes removed it between the listing and now
        except DamagedTraceError as error:
            lost.append(str(error))
    return footers, lost


def _read_run(directory: Path, footers: list[Footer]) -> RunInfo:
    try:
        return RunInfo.from_json((directory / RUN_FILE).read_bytes(), directory / RUN_FILE)
    except (FileNotFoundError, DamagedTraceError):
        runs = [run for footer in footers for run in footer.runs]
        if runs:
            return runs[-1]
        raise DamagedTraceError(f"{directory}: neither {RUN_FILE} nor a part describes the run") from None


def _how_ended(run: RunInfo, directory: Path) -> HowEnded:
    if run.end is not None:
        return run.end.how
    try:
        descriptor = os.open(directory / RING_FILE, os.O_RDONLY)
    except OSError:
        return "unknown"
    if fcntl is None:
        os.close(descriptor)
        return "unknown"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "still running"
    except OSError:
        return "unknown"  # a file system without locks
    else:
        return "killed"
    finally:
        os.close(descriptor)


def _matching(
    table: pa.Table, columns: Sequence[str] | None, batch: int | None, frames: range | None
) -> Iterator[pa.Table]:
    mask = np.ones(table.num_rows, dtype=bool)
    if batch is not None:
        mask &= table["batch_number"].to_numpy() == batch
    if frames is not None:
        numbers = table["frame_number"].to_numpy()
        mask &= (numbers >= frames.start) & (numbers < frames.stop)
    if not mask.all():
        table = table.filter(pa.array(mask))
    if table.num_rows:
        yield table if columns is None else table.select(list(columns))
