"""How the ring's file is laid out: a header, then rows, each with the columns of one row of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from overflow_analyzer.format.columns import BY_NAME, COLUMNS, NAME_SLOT, Column

if TYPE_CHECKING:
    from collections.abc import Iterable

RING_MAGIC: Final = b"OVFRING1"
RING_HEADER_SIZE: Final = 4096
RING_MAX_FRAME_ROWS: Final = 1000  # and at most a quarter of the ring
RING_HEADER: Final = np.dtype(
    {
        "names": ["magic", "format_version", "row_size", "capacity", "window_frames", "published", "dropped_frames"],
        "formats": ["S8", "<u4", "<u4", "<u8", "<u8", "<u8", "<u8"],
        "offsets": [0, 8, 12, 16, 24, 64, 72],
        "itemsize": RING_HEADER_SIZE,
    }
)
RING_PUBLISHED_OFFSET: Final = 64
RING_DROPPED_OFFSET: Final = 72
RING_END_OFFSET: Final = 128  # how the run ended: one entry as in the names file, JSON of EndInfo; zeros while it lives

RING_KEPT_OFFSET: Final = 4
RING_CHECKED_OFFSET: Final = 5  # from here to a row's end its checksum covers it
_HEAD: Final = [
    ("checksum", "<u4"),  # CRC-32
    ("kept", "u1"),  # 1: to be sealed into a part; outside the checksum, because it is set later
    ("dimensions", "u1"),  # of the shape
    ("row_number", "<u8"),  # position in the run, from 0: row r lies in slot r % capacity
    ("row_in_frame", "<u2"),
    ("rows_in_frame", "<u2"),
    ("present", "<u4"),
]
_ORDER: Final = ("frame", "entry", "tensor", "figure")


def _place(column: Column) -> tuple[int, int]:
    """Sort columns by what they belong to, larger slots first; figures last and in order, so that new ones are last."""
    return _ORDER.index(column.of), 0 if column.of == "figure" else -np.dtype(column.slot).itemsize


_FIELDS: Final = [*_HEAD, *((column.name, column.slot) for column in sorted(COLUMNS, key=_place))]
RING_ROW: Final = np.dtype(_FIELDS, align=True)
"""A row. Its size is in the header: rows with more figures than these are longer, with fewer shorter."""

_NULLABLE: Final = (name for name, slot in _FIELDS if name in BY_NAME and BY_NAME[name].nullable and slot != NAME_SLOT)
PRESENT: Final = {name: 1 << position for position, name in enumerate(_NULLABLE)}
"""The bit of ``present`` that says that a column is not null. A name is null where its position is 0."""

_CODES: Final = {"u1": "B", "u2": "H", "u4": "I", "u8": "Q", "i4": "i", "i8": "q", "f8": "d"}


def field_offset(name: str) -> int:
    """Return where a field of a row begins."""
    fields = RING_ROW.fields
    return 0 if fields is None else int(fields[name][1])


def packing(names: Iterable[str], start: int, stop: int) -> str:
    """Return the format, for the struct module, of fields of a row between two offsets, with zeros between them."""
    pieces, at = ["<"], start
    for name in names:
        kind = RING_ROW[name]
        values = kind.itemsize // kind.base.itemsize
        pieces.append(f"{field_offset(name) - at}x{values}{_CODES[kind.base.str[1:]]}")
        at = field_offset(name) + kind.itemsize
    return "".join([*pieces, f"{stop - at}x"])
