"""The ring's file: all its blocks allocated, mapped into memory, its header written."""

from __future__ import annotations

import mmap
import os
from typing import IO, TYPE_CHECKING

import numpy as np

from overflow_analyzer.format.columns import FORMAT_VERSION
from overflow_analyzer.format.ring_layout import RING_HEADER, RING_HEADER_SIZE, RING_MAGIC, RING_ROW

if TYPE_CHECKING:
    from pathlib import Path


def map_ring(path: Path | None, capacity: int, window_frames: int) -> mmap.mmap:
    """Return a new ring's memory.

    Args:
        path: A file that is not there or empty; None for memory alone.
        capacity: Rows.
        window_frames: Frames in the rolling window.

    Raises:
        OSError: The disk has no room for all of it, or refuses.
    """
    size = RING_HEADER_SIZE + capacity * RING_ROW.itemsize
    header = np.zeros((), RING_HEADER)
    header["magic"], header["format_version"], header["row_size"] = RING_MAGIC, FORMAT_VERSION, RING_ROW.itemsize
    header["capacity"], header["window_frames"] = capacity, window_frames
    if path is None:
        mapping = mmap.mmap(-1, size)
        mapping[:RING_HEADER_SIZE] = header.tobytes()
        return mapping
    with path.open("w+b", buffering=0) as ring:
        ring.write(header.tobytes())  # first: who opens a file that has bytes finds a ring
        _allocate(ring, size)
        return mmap.mmap(ring.fileno(), size)


def _allocate(ring: IO[bytes], size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(ring.fileno(), 0, size)
        return
    written = RING_HEADER_SIZE
    while written < size:
        written += ring.write(bytes(min(size - written, 1 << 20)))
