"""What one rank left in its directory or in a file of several: ``RankTrace``."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from overflow_analyzer.errors import DamagedTraceError, NotATraceError
from overflow_analyzer.format.arrays import bit_array, numbers
from overflow_analyzer.format.columns import SCHEMA
from overflow_analyzer.format.files import NAMES_FILE, PART_PREFIX, RING_FILE, RUN_FILE, open_regular, read_regular
from overflow_analyzer.format.frames import Frame, frames_from_tables
from overflow_analyzer.format.modules import MODULES_FILE, MOST_MODULES_BYTES, Modules
from overflow_analyzer.format.origin import ORIGIN_FILE, Origin
from overflow_analyzer.format.parts import Footer, RowGroup, check_pages, read_footer, read_row_group, stream_row_group
from overflow_analyzer.format.ring import read_ring
from overflow_analyzer.format.run_info import HowEnded, RunInfo
from overflow_analyzer.trace.gaps import Kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: a trace is read there too, only whether its run still lives cannot be told
    fcntl = None  # type: ignore[assignment]


_MOST_RUN_BYTES = 1 << 26
_MOST_ORIGIN_BYTES = 1 << 22
_ROWS_READ_WHOLE = 1 << 16  # larger groups are streamed, in memory that is used again
_ROWS_A_TABLE = 1 << 15
_ATTEMPTS = 5


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
    origin: Origin | None = None
    """What the recorder saw when it ran the module that made the inf/nan again."""
    lost: tuple[str, ...] = ()
    """Sentences on what could not be read."""
    unknown_ring_bytes: int = 0
    """At the end of each row of the ring: figures that only a later version knows."""
    directory: Path | None = None
    """Where what is seldom asked for is read; None for a rank of a single file."""

    @property
    def modules(self) -> Modules | None:
        """Class and settings of every module; None where they were not recorded or cannot be read."""
        return self._modules[0]

    @property
    def lost_modules(self) -> str | None:
        """A sentence on why the modules' settings cannot be read; None where they can, or were not recorded."""
        return self._modules[1]

    @cached_property
    def _modules(self) -> tuple[Modules | None, str | None]:
        if self.directory is None:
            return None, None
        path = self.directory / MODULES_FILE
        try:
            return Modules.from_json(read_regular(path, MOST_MODULES_BYTES), path), None
        except FileNotFoundError:
            return None, None
        except (OSError, DamagedTraceError) as error:
            return None, _sentence(path, error)

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
        return self._own_rows(read_row_group(group, [*(columns or SCHEMA.names), "rank"]))

    def pieces(self, group: RowGroup, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield what ``read`` returns, in order, of a large group a few ten thousand rows at a time."""
        if group.rows <= _ROWS_READ_WHOLE:
            yield self.read(group, columns)
        elif group.first_rank == group.last_rank:
            yield from stream_row_group(group, columns)
        else:
            yield from map(self._own_rows, stream_row_group(group, [*(columns or SCHEMA.names), "rank"]))

    def _own_rows(self, table: pa.Table) -> pa.Table:
        return table.filter(bit_array(numbers(table, "rank") == self.rank)).drop_columns(["rank"])

    def tables(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch: int | None = None,
        frames: range | None = None,
        groups: Iterable[RowGroup] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows in order, a row group at a time, large ones in pieces.

        Args:
            columns: Names of ``schema.SCHEMA``; None for all.
            batch: Only rows of this batch; row groups without it are not read.
            frames: Only rows whose frame_number lies in this range (step 1).
            groups: Those of ``row_groups`` to read; None for all. The ring's rows follow in any case.
        """
        asked = {"batch_number": batch, "frame_number": frames}
        wanted = columns and list(dict.fromkeys([*columns, *(name for name in asked if asked[name] is not None)]))
        groups = (group for group in (self.row_groups if groups is None else groups) if group.may_hold(batch, frames))
        pieces = itertools.chain.from_iterable(self.pieces(group, wanted) for group in groups)
        for piece in itertools.chain(pieces, [self.ring]):
            table = piece
            if frames is not None:  # rows of one rank stand in order of frames
                start, stop = np.searchsorted(numbers(table, "frame_number"), [frames.start, frames.stop])
                table = table.slice(start, max(0, stop - start))
            if batch is not None:
                there = numbers(table, "batch_number") == batch
                table = table if there.all() else table.filter(bit_array(there))
            if table.num_rows:
                yield table if columns is None else table.select(list(columns))

    def frames(self, *, batch: int | None = None, frames: range | None = None) -> Iterator[Frame]:
        """Yield frames in order; the arguments are those of ``tables``."""
        return frames_from_tables(self.tables(batch=batch, frames=frames))

    @property
    def rows(self) -> int:
        """Rows in the trace; counted by reading only where a file mixes ranks in one row group."""
        if any(group.first_rank != group.last_rank for group in self.row_groups):
            return sum(int(table.num_rows) for table in self.tables(["frame_number"]))
        return sum(group.rows for group in self.row_groups) + int(self.ring.num_rows)

    @property
    def table_count(self) -> int:
        """About how many tables ``tables`` yields, for showing how far it is."""
        return sum(group.rows // _ROWS_A_TABLE + 1 for group in self.row_groups) + 1

    @property
    def frame_count(self) -> int:
        """Distinct frames in the trace."""
        if any(footer.frames is None or len(footer.runs) > 1 for footer in self.footers):
            kept = Kept()
            for table in self.tables(["frame_number"]):
                kept.add_numbers(numbers(table, "frame_number"))
            return kept.count
        return sum(footer.frames or 0 for footer in self.footers) + len(self.ring["frame_number"].unique())

    @property
    def unknown_columns(self) -> tuple[str, ...]:
        """What is in the trace and not in the table of columns here, each name once; it is not read."""
        names = dict.fromkeys(name for footer in self.footers for name in footer.unknown_columns)
        size = self.unknown_ring_bytes
        return (*names, *((f"({size} bytes of each row of the window)",) if size else ()))

    @property
    def bytes(self) -> int:
        """Bytes of the sealed parts."""
        return sum(footer.bytes for footer in self.footers)


def open_rank(rank: int, directory: Path) -> RankTrace:
    """Open one rank's directory, of parts, a leftover ring, or both.

    Raises:
        UnknownVersionError: Written in another format version.
        DamagedTraceError: Nothing of a trace is there.
        OSError: It may not be read.
    """
    found, lost = _open_once(rank, directory), None
    for _ in range(_ATTEMPTS):
        if not found.lost or found.lost == lost:
            break
        # Damage stays; what one run removes and another makes anew while it is read does not.
        lost, found = found.lost, _open_once(rank, directory)
    return found


def _open_once(rank: int, directory: Path) -> RankTrace:
    lost_ring: list[str] = []
    lost_origin: list[str] = []
    ring, origin = None, None
    # The ring is read before the parts are listed: a row that leaves it in between is then in a part, not in neither.
    with _telling(lost_ring, directory / RING_FILE):
        ring = read_ring(directory / RING_FILE, directory / NAMES_FILE)
        ring, lost_ring = (ring, [*ring.lost]) if ring.bytes else (None, [])
    footers, lost = _read_parts(directory)
    run, lost_run = _read_run(rank, directory, footers)
    if ring is not None and run.end is None:
        run = replace(run, end=ring.end)
    ended = _how_ended(run, directory)
    if ended == "still running":
        footers = [_may_vanish(footer) for footer in footers]
    elif ring is not None:
        lost += _check_newest(footers)
    is_empty = ring.published == 0 if ring is not None else (directory / RING_FILE).exists()
    if footers and not lost_ring and ended in {"killed", "unknown"} and is_empty:
        lost.append(f"{directory / RING_FILE}: it is empty, though parts were made of its rows")
    with _telling(lost_origin, directory / ORIGIN_FILE):
        origin = Origin.from_json(read_regular(directory / ORIGIN_FILE, _MOST_ORIGIN_BYTES), directory / ORIGIN_FILE)
    last_sealed = max((group.last_frame for footer in footers for group in footer.row_groups if group.rows), default=-1)
    # Not SCHEMA.empty_table(), which imports pandas where that is installed.
    left = pa.Table.from_batches([], SCHEMA) if ring is None else ring.kept_after(last_sealed)
    return RankTrace(
        rank=rank,
        run=run,
        ended=ended,
        footers=tuple(footers),
        ring=left,
        dropped_frames=run.end.frames_dropped if run.end else (ring.dropped_frames if ring else 0),
        origin=origin,
        lost=(*lost_origin, *(lost_run if footers or left.num_rows else ()), *lost, *lost_ring),
        unknown_ring_bytes=0 if ring is None else ring.unknown_bytes,
        directory=directory,
    )


@contextlib.contextmanager
def _telling(lost: list[str], path: Path) -> Iterator[None]:
    """Add a sentence if a file cannot be read; one that is not there, or was removed by the living run, is not lost."""
    try:
        yield
    except FileNotFoundError:
        pass
    except (DamagedTraceError, NotATraceError, OSError) as error:
        lost.append(_sentence(path, error))


def _may_vanish(footer: Footer) -> Footer:
    """Say that a living run may remove the file at any time."""
    return replace(footer, row_groups=tuple(replace(group, may_vanish=True) for group in footer.row_groups))


def _check_newest(footers: list[Footer]) -> list[str]:
    """Leave the newest part out if power failed before it reached the disk: its rows may still be in the ring."""
    lost: list[str] = []
    for footer in footers[-1:]:
        with _telling(lost, footer.path):
            check_pages(footer)
    del footers[len(footers) - len(lost) :]
    return lost


def _read_parts(directory: Path) -> tuple[list[Footer], list[str]]:
    footers: list[Footer] = []
    lost: list[str] = []
    for path in sorted(directory.glob(f"{PART_PREFIX}*.parquet")):
        with _telling(lost, path):
            footers.append(read_footer(path))
    return footers, lost


def _sentence(path: Path, error: Exception) -> str:
    return f"{path}: cannot be read ({error.strerror or error})" if isinstance(error, OSError) else str(error)


def _read_run(rank: int, directory: Path, footers: list[Footer]) -> tuple[RunInfo, list[str]]:
    """Return what describes the run, and sentences if that is not what should; raise where there is nothing at all."""
    path = directory / RUN_FILE
    try:
        return RunInfo.from_json(read_regular(path, _MOST_RUN_BYTES), path), []
    except (OSError, DamagedTraceError) as error:
        runs = [run for footer in footers for run in footer.runs]
        if not footers and not (directory / RING_FILE).exists():
            raise DamagedTraceError(f"{directory}: holds nothing that a recorder left") from None
        unknown = RunInfo(run_id="", rank=rank, world_size=1, model_class="", started_ns=0)
        return (runs[-1], []) if runs else (unknown, [_sentence(path, error)])


def _how_ended(run: RunInfo, directory: Path) -> HowEnded:
    if run.end is not None:
        return run.end.how
    if fcntl is None:
        return "unknown"
    try:
        with open_regular(directory / RING_FILE) as ring:
            fcntl.flock(ring, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "still running"
    except OSError:
        return "unknown"  # no ring, or a file system without locks
    return "killed"
