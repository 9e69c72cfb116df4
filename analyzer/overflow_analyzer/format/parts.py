"""Sealed Parquet parts: how one is written so that it is whole or absent, and what its footer tells."""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from overflow_analyzer.errors import DamagedTraceError, NotATraceError
from overflow_analyzer.format.columns import (
    COLUMNS,
    COUNT_COLUMNS,
    FORMAT_VERSION,
    RANK_FIELD,
    SCHEMA,
    SINGLE_FILE_SCHEMA,
    Column,
)
from overflow_analyzer.format.files import open_arrow
from overflow_analyzer.format.footer_bounds import Bounds, Leaf, read_bounds
from overflow_analyzer.format.run_info import RunInfo, check_format_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    Progress = Callable[[Sequence["RowGroup"]], Iterable["RowGroup"]]
    _State = tuple[Path, int, int, int]


METADATA_VERSION_KEY: Final = b"overflow_trace.format_version"
METADATA_RUNS_KEY: Final = b"overflow_trace.runs"  # a JSON list with the RunInfo of each rank in the file
METADATA_PART_KEY: Final = b"overflow_trace.part"  # a JSON object: {"frames": int}

_MOST_ROWS: Final = 1 << 22  # of a row group; recorders and compacting stay below a quarter of it
_MOST_BYTES: Final = 1 << 32
_ROWS_STREAMED: Final = 1 << 15
_STREAM_BUFFER: Final = 1 << 16
_VERSION_DIGITS: Final = 18
_UNBOUNDED: Final = (-(2**63), 2**63 - 1)
_FOOTER_TAIL: Final = 8  # bytes at the end of a file: the footer's length and PAR1

_RANK: Final = Column(RANK_FIELD.name, RANK_FIELD.type, "frame", "which rank a row is of")
_KNOWN: Final = {column.name: column for column in (*COLUMNS, _RANK)}
_WRITER_OPTIONS: Final[dict[str, Any]] = {
    "compression": "zstd",
    "compression_level": 3,
    "write_statistics": True,
    "write_page_checksum": True,  # so that a page which a power cut spoilt is told from one that was written
    "store_schema": True,
}


@dataclass(frozen=True)
class RowGroup:
    """One row group of one file, described by its Parquet statistics alone."""

    path: Path
    index: int
    rows: int
    first_frame: int
    last_frame: int
    first_batch: int
    last_batch: int
    first_rank: int | None
    """None where the file has no rank column: then its directory says the rank."""
    last_rank: int | None
    finite: bool
    """Whether the statistics of the three counts prove that no element is inf or nan."""
    missing: frozenset[str] = frozenset()
    """Nullable columns that the file does not have: all of their values are null."""
    may_vanish: bool = False
    """Whether a living run's ``max_bytes`` may remove the file: a group whose file is gone has no rows then."""

    def may_hold(self, batch: int | None, frames: range | None = None) -> bool:
        """Whether there may be rows of a batch and of frames in a range (step 1); None stands for all of them."""
        return (batch is None or self.first_batch <= batch <= self.last_batch) and (
            frames is None or (self.first_frame < frames.stop and self.last_frame >= frames.start)
        )


@dataclass(frozen=True)
class Footer:
    """What a Parquet file of the trace's columns says of itself."""

    path: Path
    bytes: int
    rows: int
    frames: int | None
    """Frames in it; None where the writer did not say."""
    runs: tuple[RunInfo, ...]
    """One a rank; empty in a file that another tool rewrote."""
    row_groups: tuple[RowGroup, ...]
    unknown_columns: tuple[str, ...] = ()
    """Columns of the file that are not in the table here: they are not read."""


def part_metadata(runs: Iterable[RunInfo], frames: int) -> dict[bytes, bytes]:
    """Return the Parquet key-value metadata of a file that holds ``frames`` frames of these runs."""
    return {
        METADATA_VERSION_KEY: str(FORMAT_VERSION).encode(),
        METADATA_RUNS_KEY: json.dumps([json.loads(run.to_json()) for run in runs]).encode(),
        METADATA_PART_KEY: json.dumps({"frames": frames}).encode(),
    }


def open_part_writer(sink: Any, schema: pa.Schema, metadata: dict[bytes, bytes]) -> pq.ParquetWriter:
    """Return a Parquet writer with the trace's encodings; ``add_key_value_metadata`` can complete the footer."""
    encodings = {name: _KNOWN[name].encoding for name in schema.names}
    by_dictionary = [name for name, encoding in encodings.items() if encoding == "RLE_DICTIONARY"]
    return pq.ParquetWriter(
        sink,
        schema.with_metadata(metadata),
        use_dictionary=["shape.list.element" if name == "shape" else name for name in by_dictionary],
        column_encoding={name: encodings[name] for name in schema.names if name not in by_dictionary},
        **_WRITER_OPTIONS,
    )


def read_footer(path: Path) -> Footer:
    """Read the footer of one file.

    Raises:
        DamagedTraceError: Not a whole Parquet file.
        NotATraceError: Parquet, but without the trace's columns.
        UnknownVersionError: Another format version.
        OSError: The file cannot be opened.
    """
    state = _state(path)
    with open_arrow(path) as source:
        size = source.size()
        try:
            metadata = _metadata(source, state)
            schema = metadata.schema.to_arrow_schema()
            keys = metadata.metadata or {}
            bounds = read_bounds(_footer_bytes(source, size), _leaves(metadata.schema, schema), metadata.num_row_groups)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise DamagedTraceError(f"{path}: is not a whole Parquet file ({_first_line(error)})") from None
    version = keys.get(METADATA_VERSION_KEY)
    if version is not None:
        is_number = version.isdigit() and len(version) <= _VERSION_DIGITS
        check_format_version(int(version) if is_number else version[:40].decode("utf-8", "replace"), path)
    missing = frozenset(column.name for column in COLUMNS if column.name not in schema.names)
    needed = [column.name for column in COLUMNS if column.name in missing and not column.nullable]
    if needed:
        raise NotATraceError(f"{path}: a Parquet file, but not a trace: it has no column {', '.join(needed[:3])}")
    ranks = {RANK_FIELD.name: _UNBOUNDED} if RANK_FIELD.name in schema.names else {}
    row_groups = tuple(_row_group(path, metadata, index, ranks | some, missing) for index, some in enumerate(bounds))
    unknown = tuple(name for name in schema.names if name not in _KNOWN)
    return Footer(path, size, metadata.num_rows, _frames(keys), _runs(keys, path), row_groups, unknown)


def read_row_group(group: RowGroup, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a row group in the contract's types.

    Args:
        group: Which one.
        columns: Names of ``schema.SCHEMA`` (or "rank"); None for all of ``SCHEMA``.

    Raises:
        DamagedTraceError: Its pages cannot be read.
    """
    names = SCHEMA.names if columns is None else list(columns)
    with _opened(group) as file:
        if file is None:
            return pa.Table.from_batches([], pa.schema([SINGLE_FILE_SCHEMA.field(name) for name in names]))
        # Of so few rows a column is read sooner than another thread is woken.
        table = file.read_row_group(group.index, columns=_to_read(names, group), use_threads=False)
        return _in_contract(table, names)


def stream_row_group(group: RowGroup, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """Yield a row group in pieces, so that memory does not grow with it; the rest as ``read_row_group``."""
    names = SCHEMA.names if columns is None else list(columns)
    with _opened(group, buffer_size=_STREAM_BUFFER, pre_buffer=False) as file:
        if file is None:
            return
        for batch in file.iter_batches(_ROWS_STREAMED, row_groups=[group.index], columns=_to_read(names, group)):
            yield _in_contract(pa.Table.from_batches([batch]), names)


def check_pages(footer: Footer) -> None:
    """Read every page of a file: where power failed, one in its middle may never have reached the disk.

    Raises:
        DamagedTraceError: A page is not what was written.
    """
    for group in footer.row_groups:
        with _opened(group, page_checksum_verification=True) as file:
            file.read_row_group(group.index)


@contextlib.contextmanager
def _opened(group: RowGroup, **options: Any) -> Iterator[Any]:
    """Open a row group's file; whatever is wrong with it names the group."""
    try:
        try:
            state, source = _state(group.path), open_arrow(group.path)
        except FileNotFoundError:
            if not group.may_vanish:
                raise
            yield None
            return
        with source, pq.ParquetFile(source, metadata=_metadata(source, state), **options) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError, KeyError, MemoryError) as error:
        raise DamagedTraceError(
            f"{group.path}: row group {group.index} cannot be read ({_first_line(error)})"
        ) from None


def _state(path: Path) -> _State:
    now = path.stat()
    return path, now.st_ino, now.st_size, now.st_mtime_ns


def _metadata(source: pa.NativeFile, state: _State) -> pq.FileMetaData:
    """Parse a footer once: of a file with thousands of row groups that takes as long as reading one of them."""
    parsed = _latest(state)
    if not parsed:
        parsed.append(pq.read_metadata(source))
    return parsed[0]


@functools.lru_cache(maxsize=2)  # two traces are compared in turn
def _latest(_: _State) -> list[pq.FileMetaData]:
    """Room for the metadata of a file, for as long as it is the same and one of the last that were read."""
    return []


def _contract(names: list[str]) -> pa.Schema:
    return pa.schema([RANK_FIELD if name == RANK_FIELD.name else SCHEMA.field(name) for name in names])


def _to_read(names: Sequence[str], group: RowGroup) -> list[str]:
    """Return the columns to read of a file: at least one, which tells how many rows there are."""
    return [name for name in names if name not in group.missing] or ["frame_number"]


def _in_contract(table: pa.Table, names: list[str]) -> pa.Table:
    """Return columns in the contract's types, those that are not there as nulls.

    Raises:
        ValueError: What Arrow reads without looking and stumbles over later: a null where there is none, names that are
            no UTF-8 or positions without a name.
    """
    wanted, there = pa.schema([SINGLE_FILE_SCHEMA.field(name) for name in names]), set(table.column_names)
    columns = [table[one.name] if one.name in there else pa.nulls(table.num_rows, one.type) for one in wanted]
    found = pa.table(columns, schema=wanted)
    for field, column in zip(wanted, found.columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"column {field.name} has nulls")
        if pa.types.is_dictionary(field.type):
            column.validate(full=True)
            for chunk in column.chunks:
                chunk.dictionary.validate(full=True)
    return found


def _runs(keys: dict[bytes, bytes], path: Path) -> tuple[RunInfo, ...]:
    if METADATA_RUNS_KEY not in keys:
        return ()
    try:
        found = json.loads(keys[METADATA_RUNS_KEY])
        return tuple(RunInfo.from_mapping(one, path) for one in found)
    except (ValueError, TypeError, RecursionError) as error:
        raise DamagedTraceError(f"{path}: the run's description cannot be read ({_first_line(error)})") from None


def _frames(keys: dict[bytes, bytes]) -> int | None:
    try:
        frames = json.loads(keys[METADATA_PART_KEY])["frames"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    return frames if type(frames) is int and frames >= 0 else None


def _footer_bytes(source: pa.NativeFile, size: int) -> bytes:
    """Return the bytes of a footer that Arrow could parse: they stand before their length and four letters."""
    source.seek(size - _FOOTER_TAIL)
    length = int.from_bytes(source.read(4), "little")
    source.seek(size - _FOOTER_TAIL - length)
    found: bytes = source.read(length)
    return found


def _leaves(columns: pq.ParquetSchema, schema: pa.Schema) -> tuple[Leaf, ...]:
    """Return the file's columns, and of which the bounds describe a row group."""
    wanted = ("frame_number", "batch_number", "rank", *COUNT_COLUMNS)
    fields = (schema.field(name) for name in wanted if schema.get_field_index(name) >= 0)
    sizes = {field.name: field.type.bit_width // 8 for field in fields if pa.types.is_signed_integer(field.type)}
    leaves = map(columns.column, range(len(columns)))
    return tuple(
        Leaf(leaf.path, sizes.get(leaf.path, 0), (leaf.max_repetition_level + 1, leaf.max_definition_level + 1))
        for leaf in leaves
    )


def _row_group(
    path: Path, metadata: pq.FileMetaData, index: int, bounds: dict[str, Bounds], missing: frozenset[str]
) -> RowGroup:
    """Describe a row group.

    A few bytes can claim to be any number of equal rows, and whoever reads a row group has it in memory.
    """
    group = metadata.row_group(index)  # of it only numbers are asked: what else it has may end the process
    rows, size = group.num_rows, group.total_byte_size
    if rows > _MOST_ROWS or size > _MOST_BYTES:
        raise DamagedTraceError(
            f"{path}: row group {index} has {rows} rows ({size} bytes), more than a reader "
            f"should hold in memory ({_MOST_ROWS} rows, {_MOST_BYTES} bytes)"
        )
    frames, batches = bounds.get("frame_number", _UNBOUNDED), bounds.get("batch_number", _UNBOUNDED)
    ranks: tuple[int | None, int | None] = bounds.get(RANK_FIELD.name, (None, None))
    # Statistics leave out nulls: a null count is a tensor whose values nobody had, which proves nothing either way.
    finite = all(name in bounds and bounds[name][1] == 0 for name in COUNT_COLUMNS)
    return RowGroup(path, index, rows, *frames, *batches, *ranks, finite=finite, missing=missing)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
