"""What one rank left in its directory or in a file of several: ``RankTrace``."""

from __future__ import annotations

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
from overflow_analyzer.format.ring import RingContents, read_ring
from overflow_analyzer.format.run_info import HowEnded, RunInfo
from overflow_analyzer.trace.gaps import KeptBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
        """Yield this rank's rows of one row group in order, a large group a few ten thousand rows at a time.

        Args:
            group: One of ``row_groups``.
            columns: Names of ``format.columns.SCHEMA``; None for all.

        Raises:
            DamagedTraceError: Its pages cannot be read.
        """
        if group.rows <= _ROWS_READ_WHOLE:
            yield self.read(group, columns)
        elif group.first_rank == group.last_rank:
            yield from stream_row_group(group, columns)
        else:
            yield from map(self._own_rows, stream_row_group(group, [*(columns or SCHEMA.names), "rank"]))

    def _own_rows(self, table: pa.Table) -> pa.Table:
        return table.filter(bit_array(numbers(table, "rank") == self.rank)).drop_columns(["rank"])

    def tables(
        self, columns: Sequence[str] | None = None, *, batch: int | None = None, frames: range | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows in order, a row group at a time, large ones in pieces.

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
            for table in self.pieces(group, wanted):
                yield from _matching(table, columns, batch, frames)
        yield from _matching(self.ring, columns, batch, frames)

    def frames(self, *, batch: int | None = None, frames: range | None = None) -> Iterator[Frame]:
        """Yield frames in order; the arguments are those of ``tables``."""
        return frames_from_tables(self.tables(batch=batch, frames=frames))

    @property
    def rows(self) -> int:
        """Rows in the trace; counted by reading only where a file mixes ranks in one row group."""
        mixed = any(group.first_rank != group.last_rank for group in self.row_groups)
        if mixed:
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
            kept = KeptBuilder()
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
    """Open one rank's directory; nothing is written, and a living run can be opened.

    Args:
        rank: The number in the directory's name.
        directory: With parts, a leftover ring, or both.

    Raises:
        UnknownVersionError: Written in another format version.
        DamagedTraceError: Nothing of a trace is there.
        OSError: It may not be read.
    """
    found = _open_once(rank, directory)
    for _ in range(_ATTEMPTS):
        if not found.lost:
            break
        # Damage stays; what one run removes and another makes anew while it is read does not.
        before, found = found, _open_once(rank, directory)
        if found.lost == before.lost:
            break
    return found


def _open_once(rank: int, directory: Path) -> RankTrace:
    # The ring is read before the parts are listed: a row that leaves it in between is then in a part, not in neither.
    ring, lost_ring = _read_leftover(directory)
    footers, lost = _read_parts(directory)
    run, lost_run = _read_run(rank, directory, footers)
    if ring is not None and run.end is None:
        run = replace(run, end=ring.end)
    ended = _how_ended(run, directory)
    if ended == "still running":
        footers = [_may_vanish(footer) for footer in footers]
    elif ring is not None:
        lost += _check_newest(footers)
    if footers and not lost_ring and ended in {"killed", "unknown"} and _emptied(directory, ring):
        lost.append(f"{directory / RING_FILE}: it is empty, though parts were made of its rows")
    last_sealed = max((group.last_frame for footer in footers for group in footer.row_groups if group.rows), default=-1)
    origin, lost_origin = _read_origin(directory)
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
        lost=(
            *lost_origin,
            *(lost_run if footers or left.num_rows else ()),
            *lost,
            *lost_ring,
        ),
        unknown_ring_bytes=0 if ring is None else ring.unknown_bytes,
        directory=directory,
    )


def _emptied(directory: Path, ring: RingContents | None) -> bool:
    """Whether there is a ring without a row in it."""
    return ring.published == 0 if ring is not None else (directory / RING_FILE).exists()


def _may_vanish(footer: Footer) -> Footer:
    """Say that a living run may remove the file at any time."""
    return replace(footer, row_groups=tuple(replace(group, may_vanish=True) for group in footer.row_groups))


def _check_newest(footers: list[Footer]) -> list[str]:
    """Leave the newest part out if power failed before it reached the disk: its rows may still be in the ring."""
    try:
        for footer in footers[-1:]:
            check_pages(footer)
    except DamagedTraceError as error:
        footers.pop()
        return [str(error)]
    return []


def _read_leftover(directory: Path) -> tuple[RingContents | None, tuple[str, ...]]:
    try:
        ring = read_ring(directory / RING_FILE, directory / NAMES_FILE)
    except FileNotFoundError:
        return None, ()
    except (DamagedTraceError, OSError) as error:
        return None, (_sentence(directory / RING_FILE, error),)
    return (ring, ring.lost) if ring.bytes else (None, ())


def _read_parts(directory: Path) -> tuple[list[Footer], list[str]]:
    footers, lost = [], []
    for path in sorted(directory.glob(f"{PART_PREFIX}*.parquet")):
        try:
            footers.append(read_footer(path))
        except FileNotFoundError:
            continue  # the living run's max_bytes removed it between the listing and now
        except (DamagedTraceError, NotATraceError, OSError) as error:
            lost.append(_sentence(path, error))
    return footers, lost


def _sentence(path: Path, error: Exception) -> str:
    return f"{path}: cannot be read ({error.strerror or error})" if isinstance(error, OSError) else str(error)


def _read_run(rank: int, directory: Path, footers: list[Footer]) -> tuple[RunInfo, list[str]]:
    """Return what describes the run, and sentences if that is not what should.

    Raises:
        DamagedTraceError: There is neither a description nor anything that would need one.
    """
    path = directory / RUN_FILE
    try:
        return RunInfo.from_json(read_regular(path, _MOST_RUN_BYTES), path), []
    except (OSError, DamagedTraceError) as error:
        runs = [run for footer in footers for run in footer.runs]
        if not footers and not (directory / RING_FILE).exists():
            raise DamagedTraceError(f"{directory}: holds nothing that a recorder left") from None
        unknown = RunInfo(run_id="", rank=rank, world_size=1, model_class="", started_ns=0)
        return (runs[-1], []) if runs else (unknown, [_sentence(path, error)])


def _read_origin(directory: Path) -> tuple[Origin | None, tuple[str, ...]]:
    path = directory / ORIGIN_FILE
    try:
        return Origin.from_json(read_regular(path, _MOST_ORIGIN_BYTES), path), ()
    except FileNotFoundError:
        return None, ()
    except (OSError, DamagedTraceError) as error:
        return None, (_sentence(path, error),)


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


def _matching(
    table: pa.Table, columns: Sequence[str] | None, batch: int | None, frames: range | None
) -> Iterator[pa.Table]:
    mask = np.ones(table.num_rows, dtype=bool)
    if batch is not None:
        mask &= numbers(table, "batch_number") == batch
    if frames is not None:
        found = numbers(table, "frame_number")
        mask &= (found >= frames.start) & (found < frames.stop)
    if not mask.all():
        table = table.filter(bit_array(mask))
    if table.num_rows:
        yield table if columns is None else table.select(list(columns))
