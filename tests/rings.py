"""Leftover rings made of plain frames, packed with numpy: what a recorder leaves that was killed."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from overflow_analyzer.format.columns import BY_NAME, FORMAT_VERSION, columns_of
from overflow_analyzer.format.files import NAMES_FILE, RING_FILE, RUN_FILE
from overflow_analyzer.format.names import encode_name
from overflow_analyzer.format.ring_layout import (
    PRESENT,
    RING_CHECKED_OFFSET,
    RING_HEADER,
    RING_HEADER_SIZE,
    RING_MAGIC,
    RING_ROW,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.run_info import RunInfo


class Ring:
    """A ring's bytes, and the names its rows refer to.

    Args:
        capacity: Rows.
        window_frames: Frames in the rolling window.
    """

    def __init__(self, capacity: int, window_frames: int = 21) -> None:
        self.names = [""]
        self.header = np.zeros((), RING_HEADER)
        self.header["magic"], self.header["format_version"] = RING_MAGIC, FORMAT_VERSION
        self.header["row_size"] = RING_ROW.itemsize
        self.header["capacity"], self.header["window_frames"] = capacity, window_frames
        self.slots: npt.NDArray[np.void] = np.zeros(capacity, RING_ROW)

    def append(self, frames: Iterable[Frame], *, kept: bool = False) -> Ring:
        """Write and publish frames; the oldest rows are overwritten where the ring is full."""
        for frame in frames:
            for position, entry in enumerate(frame.entries):
                number = int(self.header["published"]) + position
                self.slots[number % len(self.slots)] = self._row(frame, entry, position, number, kept=kept)
            self.header["published"] = int(self.header["published"]) + len(frame.entries)
        return self

    def _position(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def _row(self, frame: Frame, entry: Entry, position: int, number: int, *, kept: bool) -> Any:
        row = np.zeros((), RING_ROW)
        row["row_number"], row["row_in_frame"], row["rows_in_frame"] = number, position, len(frame.entries)
        row["kept"] = kept
        for owner, names in ((frame, columns_of("frame")), (entry, columns_of("entry", "tensor", "figure"))):
            for name in names:
                self._fill(row, name, getattr(owner, name))
        return seal_row(row)

    def _fill(self, row: Any, name: str, value: Any) -> None:
        if BY_NAME[name].codes:
            row[name] = BY_NAME[name].codes.index(value)
        elif isinstance(value, str):
            row[name] = self._position(value)
        elif value is not None:
            row["present"] |= np.uint32(PRESENT.get(name, 0))  # numpy 1 would make it an int64, which does not fit
            if name == "shape":
                row["dimensions"], row["shape"][: len(value)] = len(value), value
            else:
                row[name] = value

    def save(self, directory: Path) -> None:
        """Write the ring and its names."""
        directory.mkdir(parents=True, exist_ok=True)
        header = self.header.tobytes()
        assert len(header) == RING_HEADER_SIZE
        (directory / RING_FILE).write_bytes(header + self.slots.tobytes())
        (directory / NAMES_FILE).write_bytes(b"".join(map(encode_name, self.names[1:])))


def seal_row(row: Any) -> Any:
    """Give a row the checksum of its bytes."""
    row["checksum"] = zlib.crc32(row.tobytes()[RING_CHECKED_OFFSET:])
    return row


def write_killed(path: Path, frames: Sequence[Frame], run: RunInfo, *, capacity: int = 256, window: int = 21) -> Path:
    """Write what one rank leaves that was killed before anything was sealed: RunInfo, ring, names."""
    directory = path / f"rank={run.rank}"
    Ring(capacity, window).append(frames).save(directory)
    (directory / RUN_FILE).write_text(run.to_json())
    return path
