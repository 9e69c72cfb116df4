"""Leftover rings made of plain frames, packed with numpy: what a recorder leaves that was killed."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from overflow_analyzer.format.columns import (
    FORMAT_VERSION,
    KINDS,
    NAMES_FILE,
    PHASES,
    PRESENT_COUNTS,
    PRESENT_EXTREMA,
    PRESENT_FINITE,
    PRESENT_FULL,
    PRESENT_MEANS,
    PRESENT_SHAPE,
    RING_CHECKED,
    RING_FILE,
    RING_HEADER,
    RING_HEADER_SIZE,
    RING_MAGIC,
    RING_ROW,
    ROLES,
    RUN_FILE,
)
from overflow_analyzer.format.names import encode_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.run_info import RunInfo

_PRESENT = {
    "abs_min": PRESENT_EXTREMA,
    "abs_max": PRESENT_EXTREMA,
    "finite_abs_max": PRESENT_FINITE,
    "nan_count": PRESENT_COUNTS,
    "posinf_count": PRESENT_COUNTS,
    "neginf_count": PRESENT_COUNTS,
    "zero_count": PRESENT_FULL,
    "subnormal_count": PRESENT_FULL,
    "abs_mean": PRESENT_MEANS,
    "rms": PRESENT_MEANS,
}
_OF_FRAME = ("batch_number", "frame_number", "frame_in_batch", "call_index", "optimizer_step", "time_ns")


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
            self.header["published"] += len(frame.entries)
        return self

    def _position(self, name: str | None) -> int:
        name = name or ""
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def _row(self, frame: Frame, entry: Entry, position: int, number: int, *, kept: bool) -> Any:
        row = np.zeros((), RING_ROW)
        for name in _OF_FRAME:
            row[name] = getattr(frame, name)
        row["row_number"], row["row_in_frame"], row["rows_in_frame"] = number, position, len(frame.entries)
        row["phase"], row["role"] = PHASES.index(frame.phase), ROLES.index(entry.role)
        row["kind"], row["numel"], row["kept"] = KINDS.index(entry.kind), entry.numel, kept
        for name, owner in (("module_name", frame), ("module_class", frame), ("context", entry)):
            row[name] = self._position(getattr(owner, name))
        for name in ("dtype", "device", "layout", "note"):
            row[name] = self._position(getattr(entry, name))
        for name, bit in _PRESENT.items():
            value = getattr(entry, name)
            if value is not None:
                row["present"] |= bit
                row[name] = value
        if entry.shape is not None:
            row["present"] |= PRESENT_SHAPE
            row["dimensions"] = len(entry.shape)
            row["shape"][: len(entry.shape)] = entry.shape
        return seal_row(row)

    def save(self, directory: Path) -> None:
        """Write the ring and its names."""
        directory.mkdir(parents=True, exist_ok=True)
        header = self.header.tobytes()
        assert len(header) == RING_HEADER_SIZE
        (directory / RING_FILE).write_bytes(header + self.slots.tobytes())
        (directory / NAMES_FILE).write_bytes(b"".join(map(encode_name, self.names[1:])))


def seal_row(row: Any) -> Any:
    """Give a row the checksum of its bytes."""
    row["checksum"] = zlib.crc32(row.tobytes()[RING_CHECKED])
    return row


def write_killed(path: Path, frames: Sequence[Frame], run: RunInfo, *, capacity: int = 256, window: int = 21) -> Path:
    """Write what one rank leaves that was killed before anything was sealed: RunInfo, ring, names."""
    directory = path / f"rank={run.rank}"
    Ring(capacity, window).append(frames).save(directory)
    (directory / RUN_FILE).write_text(run.to_json())
    return path
