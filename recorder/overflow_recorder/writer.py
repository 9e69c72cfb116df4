"""The background thread that turns published rows into sealed Parquet parts, a few large ones."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from overflow_analyzer.ring import rows_to_table

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from overflow_analyzer.run_info import RunInfo
    from overflow_recorder.trace_directory import TraceDirectory
    from overflow_recorder.window import Window

__all__ = ["PartWriter"]

_SAMPLED, _SELECTED, _DETECTION = range(3)
_SEAL_SECONDS: Final = 300.0
"""A slow run's parts do not wait for hours; the rows are safe in the ring all the while."""


class PartWriter:
    """Seals what has left the rolling window and is wanted.

    Args:
        window: Where the rows are.
        directory: Where the parts go.
        run: What every part says of the run.
        selected: Batches that were asked for by number: they outlive sampled ones under ``max_bytes``.
        failed: Called once, on this thread, with what the disk said; nothing is sealed after it.
    """

    def __init__(
        self,
        window: Window,
        directory: TraceDirectory,
        run: RunInfo,
        selected: Collection[int],
        failed: Callable[[Exception], None],
    ) -> None:
        self._window, self._directory, self._run, self._failed = window, directory, run, failed
        self._selected = np.array(sorted(selected), np.int64)
        self._wake = threading.Event()
        self._stopping = False
        self._seal_rows = window.capacity // 2
        self._thread = threading.Thread(target=self._work, name="overflow-recorder-writer", daemon=True)
        self._thread.start()

    def notice(self, published: int) -> None:
        """Wake the thread if there are rows enough for a part; called after each frame, so it is one comparison."""
        if published - self._window.released >= self._seal_rows:
            self._wake.set()

    def wait_for_room(self, seconds: float) -> bool:
        """Wait, at most so long, until something was sealed."""
        self._wake.set()
        with self._window.room:
            return self._window.room.wait(seconds)

    def _work(self) -> None:
        sealed_at = time.monotonic()
        while not self._stopping:
            self._wake.wait(_SEAL_SECONDS / 10)
            due = self._wake.is_set() or time.monotonic() - sealed_at > _SEAL_SECONDS
            self._wake.clear()
            if not due or self._stopping:
                continue
            try:
                self.seal(self._window.window_start)
            except Exception as error:  # noqa: BLE001  whatever the disk or a library says, training goes on
                self._failed(error)
                return
            sealed_at = time.monotonic()

    def seal(self, stop: int, *, detection: bool = False) -> None:
        """Seal the wanted rows below row number ``stop`` into one part, and release them.

        Args:
            stop: A frame's first row, or the end.
            detection: The rows hold a detection's window, which ``max_bytes`` never removes.

        Raises:
            OSError: The disk refused; the rows stay in the ring.
        """
        with self._window.lock:  # a row that nobody wants may be overwritten by a later one at any time
            rows = self._window.rows(self._window.released, stop)
        rows = rows[rows["kept"] == 1]
        if len(rows):
            asked_for = bool(np.isin(rows["batch_number"], self._selected).any())
            frames = len(np.unique(rows["frame_number"]))
            retention = _DETECTION if detection else _SELECTED if asked_for else _SAMPLED
            self._directory.seal(rows_to_table(rows, self._window.names), self._run, frames, retention)
        self._window.release(stop)

    def stop(self) -> None:
        """End the thread; a part that it is sealing is finished first."""
        self._stopping = True
        self._wake.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
