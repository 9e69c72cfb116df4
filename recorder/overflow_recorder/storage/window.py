"""The rolling window: a memory-mapped ring of fixed-size rows, also the staging area for parts, and what survives.

Dirty pages of a shared file mapping belong to the kernel: they outlive a process however it ends. A frame's rows are
written first and published by one aligned 8-byte store that moves last; a reader trusts only rows whose checksum
agrees.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import mmap
import struct
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from overflow_analyzer.format.files import NAMES_FILE, RING_FILE
from overflow_analyzer.format.frames import frames_from_tables
from overflow_analyzer.format.names import encode_name
from overflow_analyzer.format.ring import rows_to_table
from overflow_analyzer.format.ring_layout import (
    RING_CHECKED_OFFSET,
    RING_DROPPED_OFFSET,
    RING_END_OFFSET,
    RING_HEADER_SIZE,
    RING_KEPT_OFFSET,
    RING_MAX_FRAME_ROWS,
    RING_PUBLISHED_OFFSET,
    RING_ROW,
    packing,
)
from overflow_recorder.storage.name_dictionary import MOST_NAMES_BYTES, NameDictionary
from overflow_recorder.storage.packed_tensor import TENSOR_OFFSET
from overflow_recorder.storage.ring_file import map_ring

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.format.run_info import EndInfo
    from overflow_recorder.storage.packed_tensor import PackedTensor


_ROW_SIZE: Final = RING_ROW.itemsize
_PACKED_ONE_BY_ONE: Final = (
    "dimensions", "row_number", "row_in_frame", "rows_in_frame", "present", "batch_number", "frame_number",
    "optimizer_step", "time_ns", "frame_in_batch", "call_index", "module_name", "module_class", "phase", "context",
    "role", "kind",
)  # fmt: skip
_ROW: Final = struct.Struct(
    f"{packing(_PACKED_ONE_BY_ONE, RING_CHECKED_OFFSET, TENSOR_OFFSET)}{_ROW_SIZE - TENSOR_OFFSET}s"
)
_CHECKSUM: Final = struct.Struct("<I")
_KEPT: Final = (b"\0", b"\1")
_PAGE_OUT_ROWS: Final = 4096  # 1 MiB: how much of the mapping stays in the process's resident memory behind the writer
_URGENT_ROWS: Final = 4096
_LONGEST_REASON: Final = 250  # characters: as JSON always less than the header has room for


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
        directory: Where the ring and its names lie, without either so far; None keeps both in memory only.
        capacity: Rows. Blocks for all of them are allocated now: a sparse mapping on a disk that fills up later would
            kill the training with SIGBUS. The window takes at most half of them, whatever ``window_frames`` says, and a
            frame at most a quarter, so that there is always something to seal and to overwrite.
        window_frames: Frames in the rolling window.
        max_names_bytes: Most bytes of the file of names.

    Raises:
        OSError: The disk has no room for the ring, or the directory cannot be written.
    """

    def __init__(
        self,
        directory: Path | None,
        capacity: int,
        window_frames: int,
        *,
        max_names_bytes: int = MOST_NAMES_BYTES,
    ) -> None:
        self.capacity = capacity
        self.max_frame_rows = min(capacity // 4, RING_MAX_FRAME_ROWS)
        self._window_rows = capacity // 2
        self._ordinary_rows = capacity - min(capacity // 4, _URGENT_ROWS)
        self._in_memory = directory is None
        # The names are there before the ring: who finds a ring finds its names.
        self._dictionary = NameDictionary(None if directory is None else directory / NAMES_FILE, max_names_bytes)
        self._map = map_ring(None if directory is None else directory / RING_FILE, capacity, window_frames)
        self.names = self._dictionary.names
        self.position = self._dictionary.position
        self._rows = np.frombuffer(self._map, RING_ROW, count=capacity, offset=RING_HEADER_SIZE)
        self._counters = memoryview(self._map)[:RING_HEADER_SIZE].cast("Q")
        self._frame_numbers = itertools.count()
        self._starts: collections.deque[int] = collections.deque(maxlen=window_frames)
        # A signal handler may close the recorder in the middle of a frame: then this thread has the lock already.
        self.lock = threading.RLock()
        self._writing = False
        self._closed = False
        self.published = 0
        self.released = 0
        """Rows below this number are sealed or not kept: their slots may be overwritten."""
        self.kept_windows: list[tuple[int, int]] = []
        """Row numbers, start and stop, of windows that ``keep_window`` marked and that are not sealed yet."""
        self.dropped_frames = 0
        self._paged_out = 0

    def continue_after(self, earlier: Window) -> None:
        """Count frames on from another window's, before the first one here."""
        self._frame_numbers = itertools.count(earlier.frames_seen())
        self.dropped_frames = earlier.dropped_frames
        self._counters[RING_DROPPED_OFFSET // 8] = self.dropped_frames

    def skip_frame(self) -> None:
        """Count a frame that nobody measured."""
        next(self._frame_numbers)

    def drop_frame(self) -> None:
        """Count a frame that was measured and has no room: its number is missing in the trace."""
        with self.lock:
            next(self._frame_numbers)
            self.dropped_frames += 1
            if not self._closed:
                self._counters[RING_DROPPED_OFFSET // 8] = self.dropped_frames

    def append(
        self,
        head: FrameHead,
        entries: Sequence[tuple[int, int, int, PackedTensor]],
        *,
        kept: bool,
        urgent: bool = False,
    ) -> int | None:
        """Write and publish one frame.

        Args:
            head: What its rows share.
            entries: (kind, role, position of the context, measured) a row, from one to ``max_frame_rows``.
            kept: Whether it is to be sealed even if it leaves the window.
            urgent: Whether it may take the last rows, which others leave free.

        Returns:
            Its frame number, or None where the ring is full of rows that the disk has not taken yet.
        """
        with self.lock:
            if self._writing or self._closed:
                return None
            self._writing = True
            try:
                return self._append(head, entries, _KEPT[kept], self.capacity if urgent else self._ordinary_rows)
            except ValueError:
                if self._closed:  # by a signal handler that interrupted this very frame
                    return None
                raise
            finally:
                self._writing = False

    def _append(
        self, head: FrameHead, entries: Sequence[tuple[int, int, int, PackedTensor]], kept: bytes, room: int
    ) -> int | None:
        first = self.published
        stop = first + len(entries)
        if stop - room > self.released and not self._make_room(stop - room):
            return None
        frame_number = next(self._frame_numbers)
        self._write(first, frame_number, head, entries, kept)
        self.published = stop
        # One aligned store, after all rows: a kill before it leaves the frame out, after it leaves it in, whole.
        self._counters[RING_PUBLISHED_OFFSET // 8] = stop
        self._starts.append(first)
        if stop - self._paged_out >= _PAGE_OUT_ROWS:
            self._page_out()
        return frame_number

    def _write(
        self,
        first: int,
        frame_number: int,
        head: FrameHead,
        entries: Sequence[tuple[int, int, int, PackedTensor]],
        kept: bytes,
    ) -> None:
        batch, in_batch, call, module_name, module_class, phase, step, time_ns = head
        count, mapping, capacity, pack = len(entries), self._map, self.capacity, _ROW.pack
        for row_in_frame, (kind, role, context, measured) in enumerate(entries):
            row = first + row_in_frame
            body = pack(
                measured.dimensions, row, row_in_frame, count, measured.present, batch, frame_number, step, time_ns,
                in_batch, call, module_name, module_class, phase, context, role, kind, measured.tensor,
            )  # fmt: skip
            at = RING_HEADER_SIZE + row % capacity * _ROW_SIZE
            mapping[at : at + _ROW_SIZE] = _CHECKSUM.pack(zlib.crc32(body)) + kept + body

    def _make_room(self, need: int) -> bool:
        """Give up rows that are not kept, many at once, up to the first that is."""
        goal = max(need, min(need + self.capacity // 16, self.window_start))
        kept = np.flatnonzero(self.rows(self.released, goal)["kept"])
        self.released = self.released + int(kept[0]) if len(kept) else goal
        return self.released >= need

    def _page_out(self) -> None:
        """Let go of the pages behind: they stay in the kernel's cache, outside this process's resident memory."""
        if not self._in_memory and hasattr(mmap, "MADV_DONTNEED"):
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
        """The number of the first row of the rolling window, or of as much of it as half the ring holds."""
        with self.lock:
            oldest = self.published - self._window_rows
            return next((start for start in self._starts if start >= oldest), self.published)

    def keep_window(self) -> None:
        """Mark the rolling window's rows as kept, in a part that ``max_bytes`` never removes."""
        with self.lock:
            start, stop = self.window_start, self.published
            for row in range(start, stop):
                self._map[RING_HEADER_SIZE + row % self.capacity * _ROW_SIZE + RING_KEPT_OFFSET] = 1
            if self.kept_windows and start <= self.kept_windows[-1][1]:
                start = self.kept_windows.pop()[0]
            self.kept_windows.append((start, stop))

    def rows_before_window(self, batch_number: int) -> Any:
        """Return a copy of a batch's rows that are neither in the rolling window nor kept, as far as the ring has them.

        Those that are kept are in a part or on their way into one.
        """
        with self.lock:
            rows = self.rows(self.published - self.capacity, self.window_start)
        rows = rows[(rows["batch_number"] == batch_number) & (rows["kept"] == 0)]
        whole = np.flatnonzero(rows["row_in_frame"] == 0)  # the first frame may be overwritten in part
        return rows[whole[0] :] if len(whole) else rows[:0]

    def release(self, row: int) -> None:
        """Say that rows below this number are sealed or not kept."""
        with self.lock:
            self.released = max(self.released, row)
            self.kept_windows = [(start, stop) for start, stop in self.kept_windows if stop > row]

    def last_frames(self) -> list[Frame]:
        """Return the frames of the rolling window, oldest first."""
        with self.lock:
            rows = self.rows(self.window_start, self.published)
        return list(frames_from_tables([rows_to_table(rows, self.names)]))

    def frames_seen(self) -> int:
        """Frames of the run so far, measured or not."""
        with self.lock:
            seen = next(self._frame_numbers)
            self._frame_numbers = itertools.count(seen)  # looking takes no number: a frame may be under way
            return seen

    def write_end(self, end: EndInfo) -> None:
        """Note in the ring's header how the run ended: it needs no room on the disk."""
        entry = encode_name(end.to_json())
        if len(entry) > RING_HEADER_SIZE - RING_END_OFFSET:
            entry = encode_name(dataclasses.replace(end, reason=(end.reason or "")[:_LONGEST_REASON]).to_json())
        self._map[RING_END_OFFSET : RING_END_OFFSET + len(entry)] = entry

    def close(self) -> None:
        """Unmap and close; the files stay. Takes no lock: in a forked child a thread may hold it that is not there."""
        self._closed = True
        self._rows = self._rows[:0].copy()
        self._counters.release()
        with contextlib.suppress(BufferError):  # another thread is copying rows: unmapped when it has done
            self._map.close()
        self._dictionary.close()
