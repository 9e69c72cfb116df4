"""The rolling window: a memory-mapped ring of fixed-size rows, also the staging area for parts, and what survives.

Dirty pages of a shared file mapping belong to the kernel: they outlive a process however it ends. A frame's rows are
written first and published by one aligned 8-byte store that moves last; a reader trusts only rows whose checksum
agrees.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import mmap
import os
import struct
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from overflow_analyzer.frames import frames_from_tables
from overflow_analyzer.names import encode_name
from overflow_analyzer.ring import rows_to_table
from overflow_analyzer.schema import (
    FORMAT_VERSION,
    NAMES_FILE,
    RING_DROPPED_OFFSET,
    RING_END_OFFSET,
    RING_FILE,
    RING_HEADER,
    RING_HEADER_SIZE,
    RING_KEPT_OFFSET,
    RING_MAGIC,
    RING_PUBLISHED_OFFSET,
    RING_ROW,
    RING_ROW_FORMAT,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from overflow_analyzer.frames import Frame
    from overflow_recorder.measured import Measured

__all__ = ["FrameHead", "Window"]

_ROW: Final = struct.Struct(RING_ROW_FORMAT)
_CHECKSUM: Final = struct.Struct("<I")
_ROW_SIZE: Final = RING_ROW.itemsize
_KEPT: Final = (b"\0", b"\1")
_PAGE_OUT_ROWS: Final = 4096  # 1 MiB: how much of the mapping stays in the process's resident memory behind the writer
_MAX_NAMES: Final = 200_000
_TOO_MANY_NAMES: Final = "(more names than are kept)"


class FrameHead(NamedTuple):
    """What all rows of a frame share; codes and name positions as in a ring row."""

    batch_number: int
    frame_in_batch: int
    call_index: int
    module_name: int
    module_class: int
    phase: int
    optimizer_step: int
    time_ns: int


class Window:
    """A ring of rows with the last ``window_frames`` frames, and older ones until they are sealed or overwritten.

    Args:
        directory: Where the ring and its names lie; None keeps both in memory only.
        capacity: Rows. Blocks for all of them are allocated now: a sparse mapping on a disk that fills up later would
            kill the training with SIGBUS.
        window_frames: Frames in the rolling window.

    Raises:
        OSError: The disk has no room for the ring, or the directory cannot be written.
    """

    def __init__(self, directory: Path | None, capacity: int, window_frames: int) -> None:
        self.capacity = capacity
        self.names: list[str] = [""]
        self._positions = {"": 0}
        self._names_file: int | None = None
        self._directory = directory
        self._map = self._allocate(RING_HEADER_SIZE + capacity * _ROW_SIZE)
        self._rows = np.frombuffer(self._map, RING_ROW, count=capacity, offset=RING_HEADER_SIZE)
        self._counters = memoryview(self._map)[:RING_HEADER_SIZE].cast("Q")
        header = np.zeros((), RING_HEADER)
        header["magic"], header["format_version"], header["row_size"] = RING_MAGIC, FORMAT_VERSION, _ROW_SIZE
        header["capacity"], header["window_frames"] = capacity, window_frames
        self._map[:RING_HEADER_SIZE] = header.tobytes()
        self._frame_numbers = itertools.count()
        self._starts: collections.deque[int] = collections.deque(maxlen=window_frames)
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)
        self.published = 0
        self.released = 0
        """Rows below this number are sealed or not wanted: their slots may be overwritten."""
        self.dropped_frames = 0
        self._paged_out = 0

    def _allocate(self, size: int) -> mmap.mmap:
        if self._directory is None:
            return mmap.mmap(-1, size)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        ring = os.open(self._directory / RING_FILE, flags, 0o666)
        try:
            os.posix_fallocate(ring, 0, size)
            mapping = mmap.mmap(ring, size)
        finally:
            os.close(ring)
        self._names_file = os.open(self._directory / NAMES_FILE, flags | os.O_TRUNC | os.O_APPEND, 0o666)
        return mapping

    def position(self, name: str) -> int:
        """Return the position of a name in the dictionary, adding it to the file before any row can use it.

        Raises:
            OSError: The disk has no room for a new name.
        """
        found = self._positions.get(name)
        return self._add_name(name) if found is None else found

    def _add_name(self, name: str) -> int:
        with self.lock:
            if name in self._positions:
                return self._positions[name]
            if len(self.names) > _MAX_NAMES:
                # Without a bound, keys that differ in every batch would grow the process's memory for days.
                return self._positions.setdefault(_TOO_MANY_NAMES, 0)
            if self._names_file is not None:
                entry = encode_name(name)
                if os.write(self._names_file, entry) != len(entry):
                    raise OSError("the disk is full: a name was written in part")
            self.names.append(name)
            self._positions[name] = len(self.names) - 1
            return self._positions[name]

    def skip_frame(self) -> None:
        """Count a frame that nobody measured."""
        next(self._frame_numbers)

    def append(self, head: FrameHead, entries: Sequence[tuple[int, int, int, Measured]], *, kept: bool) -> int | None:
        """Write and publish one frame.

        Args:
            head: What its rows share.
            entries: (kind, role, position of the context, measured) a row, at least one.
            kept: Whether it is to be sealed even if it leaves the window.

        Returns:
            Its frame number, or None where the ring is full of rows that the disk has not taken yet.
        """
        with self.lock:
            frame_number = next(self._frame_numbers)
            first = self.published
            if first + len(entries) - self.capacity > self.released and not self._make_room(len(entries)):
                self.dropped_frames += 1
                self._counters[RING_DROPPED_OFFSET // 8] = self.dropped_frames
                return None
            self._write(first, frame_number, head, entries, _KEPT[kept])
            self._starts.append(first)
            self.published = first + len(entries)
            # One aligned store, after all rows: a kill before it leaves the frame out, after it leaves it in, whole.
            self._counters[RING_PUBLISHED_OFFSET // 8] = self.published
            if self.published - self._paged_out >= _PAGE_OUT_ROWS:
                self._page_out()
        return frame_number

    def _write(
        self,
        first: int,
        frame_number: int,
        head: FrameHead,
        entries: Sequence[tuple[int, int, int, Measured]],
        kept: bytes,
    ) -> None:
        batch, in_batch, call, module_name, module_class, phase, step, time_ns = head
        count, mapping, capacity, pack = len(entries), self._map, self.capacity, _ROW.pack
        for row_in_frame, (kind, role, context, measured) in enumerate(entries):
            row = first + row_in_frame
            body = pack(
                kind, role, phase, measured.dimensions, row, batch, frame_number, step, time_ns, measured.figures,
                call, in_batch, module_name, module_class, context, measured.description,
                row_in_frame, count, measured.present, 0, measured.shape,
            )  # fmt: skip
            at = RING_HEADER_SIZE + row % capacity * _ROW_SIZE
            mapping[at : at + RING_KEPT_OFFSET + 1] = _CHECKSUM.pack(zlib.crc32(body)) + body + kept

    def _make_room(self, count: int) -> bool:
        """Give up rows that nobody wants; called with the lock held when the ring is full."""
        need = self.published + count - self.capacity
        wanted = np.flatnonzero(self.rows(self.released, need)["kept"])
        self.released = self.released + int(wanted[0]) if len(wanted) else need
        return self.released >= need

    def _page_out(self) -> None:
        """Let go of the pages behind: they stay in the kernel's cache, outside this process's resident memory."""
        if self._directory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)
        self._paged_out = self.published

    def rows(self, start: int, stop: int) -> Any:
        """Return a copy of the rows with these numbers, in order; the caller holds the lock."""
        start = max(start, stop - self.capacity, 0)
        first, last = start % self.capacity, stop % self.capacity
        if stop <= start:
            return self._rows[:0].copy()
        if first < last:
            return self._rows[first:last].copy()
        return np.concatenate([self._rows[first:], self._rows[:last]])

    @property
    def window_start(self) -> int:
        """The number of the first row of the rolling window."""
        return self._starts[0] if self._starts else self.published

    def keep_window(self) -> None:
        """Mark the rolling window's rows as wanted, whatever leaves the window later."""
        with self.lock:
            for row in range(max(self.window_start, self.published - self.capacity), self.published):
                self._map[RING_HEADER_SIZE + row % self.capacity * _ROW_SIZE + RING_KEPT_OFFSET] = 1

    def release(self, row: int) -> None:
        """Say that rows below this number are sealed or not wanted."""
        with self.lock:
            self.released = max(self.released, row)
            self.room.notify_all()

    def last_frames(self, count: int | None = None) -> list[Frame]:
        """Return the last ``count`` frames of the rolling window (all of it by default), oldest first."""
        with self.lock:
            still_there = [start for start in self._starts if start >= self.published - self.capacity]
            starts = still_there[-(count or len(still_there)) :]
            rows = self.rows(starts[0] if starts else self.published, self.published)
        return list(frames_from_tables([rows_to_table(rows, self.names)]))

    def frames_seen(self) -> int:
        """Frames of the run so far, measured or not; takes a number, so only at the end."""
        return next(self._frame_numbers)

    def write_end(self, end_json: str) -> None:
        """Note in the ring's header how the run ended: it needs no room on the disk."""
        entry = encode_name(end_json)
        if len(entry) <= RING_HEADER_SIZE - RING_END_OFFSET:
            self._map[RING_END_OFFSET : RING_END_OFFSET + len(entry)] = entry

    def close(self, *, remove: bool) -> None:
        """Unmap, and where everything is sealed remove both files; a forked child closes its copy and removes none."""
        self._counters.release()
        del self._rows
        with contextlib.suppress(BufferError):
            self._map.close()
        if self._names_file is not None:
            os.close(self._names_file)
            self._names_file = None
        if remove and self._directory is not None:
            for name in (RING_FILE, NAMES_FILE):
                with contextlib.suppress(OSError):
                    (self._directory / name).unlink()
