"""Reading the ring: rows that prove themselves become the trace's columns, without a Python object a row."""

from __future__ import annotations

import errno
import os
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from overflow_analyzer.errors import DamagedTraceError
from overflow_analyzer.format.arrays import bit_array, number_array, text_array
from overflow_analyzer.format.columns import BY_NAME, COLUMNS, MAX_DIMENSIONS, SCHEMA, Column
from overflow_analyzer.format.files import open_regular, read_regular
from overflow_analyzer.format.names import read_names
from overflow_analyzer.format.ring_layout import (
    PRESENT,
    RING_CHECKED_OFFSET,
    RING_END_OFFSET,
    RING_HEADER,
    RING_HEADER_SIZE,
    RING_MAGIC,
    RING_MAX_FRAME_ROWS,
    RING_ROW,
    field_offset,
)
from overflow_analyzer.format.run_info import EndInfo, check_format_version

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


Rows = npt.NDArray[np.void]

_MOST_RING_BYTES = 1 << 29  # twice the largest ring that a recorder makes
_MOST_NAMES_BYTES = 1 << 26
_ATTEMPTS = 10
_ABSURD = 1 << 60
_NEVER_ZERO = ("format_version", "row_size", "capacity", "window_frames")
_MOST_ROW_BYTES = 1 << 16
_CODES = {column.name: column.codes for column in COLUMNS if column.codes}
_NAMES = tuple(column for column in COLUMNS if pa.types.is_dictionary(column.type) and not column.codes)


@dataclass(frozen=True)
class RingContents:
    """What a ring file holds: whole frames in order, and what could not be read."""

    rows: Rows
    names: Sequence[str]
    window_frames: int | None
    """Size of the rolling window in frames; None where the header is damaged."""
    bytes: int
    """Size of the file; 0 where its run was only about to start."""
    published: int
    """Rows that the header counts; 0 where it is damaged."""
    dropped_frames: int
    unknown_bytes: int
    """At the end of each row: figures that the table here does not have."""
    end: EndInfo | None
    """How the run ended, where the recorder still could say it."""
    lost: tuple[str, ...]
    """Sentences that say what is missing."""

    def kept_after(self, last_sealed_frame: int) -> pa.Table:
        """Return the rows that belong to the trace and are in no sealed part: flagged ones and the window's."""
        frames = self.rows["frame_number"]
        wanted = frames > last_sealed_frame
        distinct = np.unique(frames)
        if self.window_frames is not None and len(distinct) > self.window_frames:
            wanted &= (self.rows["kept"] == 1) | (frames >= distinct[-self.window_frames])
        return rows_to_table(self.rows[wanted], self.names)


def read_ring(ring_path: Path, names_path: Path) -> RingContents:
    """Read a leftover ring, of a living run too; nothing is written and nothing is locked.

    A row counts if its checksum agrees, its names are there and all rows of its frame are: so neither a kill in the
    middle of a write nor a torn page can put a wrong figure into the trace.

    Raises:
        UnknownVersionError: The ring has another format version.
        DamagedTraceError: Its rows are too short for what every row has.
        OSError: The file cannot be read, or is not there any more: its run has just been closed.
    """
    for _ in range(_ATTEMPTS):
        with open_regular(ring_path) as ring:
            # Rows refer to names written before them, so the ring is read first.
            data, being_written = _read_rows(ring, ring_path)
            names, lost = _read_names(names_path)
            # A run that closes removes the ring, then the names; a new one may have put both in their place. While the
            # ring is open here, no other file can have its number.
            same = os.path.samestat(os.fstat(ring.fileno()), ring_path.stat())
        if same and len(being_written) <= _number(data, "capacity") // 4:
            break
    if not same:
        raise FileNotFoundError(errno.ENOENT, "one run after another is recording there", str(ring_path))
    header = _read_header(data, ring_path)
    if header is None:
        lost.append(f"the header of {ring_path.name}")
    row_size = RING_ROW.itemsize if header is None else int(header["row_size"])
    slots, valid = _slots(data, row_size)
    unreadable = _unreadable_slots(slots, valid, header, being_written)
    if len(being_written) <= _number(data, "capacity") // 4:
        # What was published later may be there in part: a snapshot ends where the reading began.
        valid &= (slots["row_number"] < being_written.start) | (len(being_written) == 0)
    rows = slots[valid]
    named = np.logical_and.reduce([rows[column.name] < len(names) for column in _NAMES])
    unreadable += int(np.count_nonzero(~named))
    if unreadable:
        lost.append(f"{unreadable} rows of the window in {ring_path.name}")
    rows = rows[named]
    said, _ = read_names(data[RING_END_OFFSET:RING_HEADER_SIZE])
    return RingContents(
        rows=_whole_frames(rows[np.argsort(rows["row_number"], kind="stable")]),
        names=names,
        window_frames=None if header is None else int(header["window_frames"]),
        bytes=len(data),
        published=0 if header is None else int(header["published"]),
        dropped_frames=0 if header is None else int(header["dropped_frames"]),
        unknown_bytes=max(0, row_size - RING_ROW.itemsize),
        end=None if header is None or len(said) < 2 else EndInfo.from_json(said[1]),  # noqa: PLR2004  the empty name
        lost=tuple(lost),
    )


def _read_rows(ring: IO[bytes], path: Path) -> tuple[bytes, range]:
    """Return a ring's bytes, and the numbers of the rows that were published meanwhile."""
    data = ring.read(_MOST_RING_BYTES + 1)
    if len(data) > _MOST_RING_BYTES:
        raise OSError(errno.EFBIG, f"larger than {_MOST_RING_BYTES} bytes", str(path))
    ring.seek(0)
    return data, range(_number(data, "published"), _number(ring.read(RING_HEADER_SIZE), "published"))


def _read_names(path: Path) -> tuple[list[str], list[str]]:
    """Return the names, and sentences on what is lost of them."""
    try:
        names, torn = read_names(read_regular(path, _MOST_NAMES_BYTES))
    except OSError as error:
        return [""], [f"{path.name} and with it the window's rows ({error.strerror or error})"]
    return names, [f"{torn} bytes at the end of {path.name}"] if torn else []


def _number(data: bytes, field: str) -> int:
    offset = RING_HEADER.fields[field][1]  # type: ignore[index]
    return int.from_bytes(data[offset : offset + 8], "little")


def _read_header(data: bytes, where: Path) -> Any:
    if len(data) < RING_HEADER_SIZE:
        return None
    header = np.frombuffer(data, RING_HEADER, count=1)[0]
    if bytes(header["magic"]) != RING_MAGIC or not all(header[name] for name in _NEVER_ZERO):
        return None
    check_format_version(int(header["format_version"]), where)
    row_size = int(header["row_size"])
    missing = [name for name in RING_ROW.names or () if not _fits(name, row_size)]
    needed = [name for name in missing if name not in BY_NAME or not BY_NAME[name].nullable]
    if needed or row_size > _MOST_ROW_BYTES:
        without = f", too short for {needed[0]}" if needed else ""
        raise DamagedTraceError(f"{where}: rows of {row_size} bytes{without}, {RING_ROW.itemsize} expected")
    return header


def _fits(name: str, row_size: int) -> bool:
    return field_offset(name) + RING_ROW[name].itemsize <= row_size


def _slots(data: bytes, row_size: int) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return the rows as the table here has them, and which of them prove themselves.

    Figures that longer rows have besides are left out, those that shorter ones lack are not present.
    """
    count = max(0, len(data) - RING_HEADER_SIZE) // row_size
    fields = [name for name in RING_ROW.names or () if _fits(name, row_size)]
    layout = np.dtype(
        {
            "names": fields,
            "formats": [RING_ROW[name] for name in fields],
            "offsets": [field_offset(name) for name in fields],
            "itemsize": row_size,
        }
    )
    slots: Rows = np.frombuffer(data, layout, count=count, offset=min(len(data), RING_HEADER_SIZE))
    valid = slots["rows_in_frame"] > 0
    view, checksums = memoryview(data), slots["checksum"].tolist()
    for slot in np.flatnonzero(valid).tolist():
        at = RING_HEADER_SIZE + slot * row_size
        if zlib.crc32(view[at + RING_CHECKED_OFFSET : at + row_size]) != checksums[slot]:
            valid[slot] = False
    if row_size != RING_ROW.itemsize:
        known = np.zeros(count, RING_ROW)
        for name in fields:
            known[name] = slots[name]
        known["present"] &= sum(bit for name, bit in PRESENT.items() if name in fields)
        slots = known
    # A checksum proves the writer's bytes, not a stranger's: codes outside the contract are not a row.
    for name, meanings in _CODES.items():
        valid &= slots[name] < len(meanings)
    valid &= slots["dimensions"] <= MAX_DIMENSIONS
    return slots, valid


def _unreadable_slots(slots: Rows, valid: npt.NDArray[np.bool_], header: Any, being_written: range) -> int:
    """Count published rows that do not prove themselves; slots after the last may be in the middle of a write."""
    if header is None:
        return int(np.count_nonzero(~valid & (slots["rows_in_frame"] > 0)))
    capacity, published = min(int(header["capacity"]), _ABSURD), min(int(header["published"]), _ABSURD)
    if capacity <= 0:
        return 0
    missing_at_the_end = max(0, min(capacity, published) - len(slots))
    used = np.zeros(len(slots), dtype=bool)
    used[: min(capacity, published, len(slots))] = True
    rows = min(capacity, len(being_written) + min(RING_MAX_FRAME_ROWS, capacity // 4))
    coming = published + np.arange(rows)
    overwritten = coming[coming >= capacity] % capacity
    used[overwritten[overwritten < len(slots)]] = False
    return missing_at_the_end + int(np.count_nonzero(used & ~valid))


def _whole_frames(rows: Rows) -> Rows:
    _, inverse, counts = np.unique(rows["frame_number"], return_inverse=True, return_counts=True)
    whole: Rows = rows[counts[inverse] == rows["rows_in_frame"]]
    return whole


def rows_to_table(rows: Rows, names: Sequence[str]) -> pa.Table:
    """Return rows of ``RING_ROW``, whose positions refer to ``names``, as a table in ``SCHEMA``."""
    return pa.table([_column(column, rows, names) for column in COLUMNS], schema=SCHEMA)


def _column(column: Column, rows: Rows, names: Sequence[str]) -> pa.Array:
    if column.codes:
        codes = number_array(rows[column.name].astype(np.int32))
        return pa.DictionaryArray.from_arrays(codes, text_array(column.codes))
    if pa.types.is_list(column.type):
        return _shapes(rows)
    values = np.ascontiguousarray(rows[column.name])
    if pa.types.is_dictionary(column.type):
        used, indices = np.unique(values, return_inverse=True)
        codes = number_array(indices.astype(np.int32), values == 0 if column.nullable else None)
        return pa.DictionaryArray.from_arrays(codes, text_array([names[at] for at in used.tolist()]))
    return number_array(values, (rows["present"] & PRESENT[column.name]) == 0 if column.nullable else None)


def _shapes(rows: Rows) -> pa.Array:
    has_shape = (rows["present"] & PRESENT["shape"]) != 0
    lengths = np.where(has_shape, rows["dimensions"], 0).astype(np.int32)
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    taken = np.arange(MAX_DIMENSIONS) < lengths[:, None]
    return pa.ListArray.from_arrays(
        number_array(offsets), number_array(rows["shape"][taken]), mask=bit_array(~has_shape)
    )
