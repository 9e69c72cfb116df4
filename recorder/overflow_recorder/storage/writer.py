"""The background thread that turns published rows into sealed Parquet parts, a few large ones."""

from __future__ import annotations

import inspect
import itertools
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from overflow_analyzer.format.ring import rows_to_table
from overflow_recorder.storage.directory import NUMBERED, SAMPLED, WINDOW
from overflow_recorder.storage.sealing import encode_part

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from overflow_analyzer.format.run_info import RunInfo
    from overflow_recorder.storage.directory import TraceDirectory
    from overflow_recorder.storage.window import Window


SEAL_SECONDS: Final = 300.0
"""A slow run's parts do not wait for hours; the rows are safe in the ring all the while."""
_ROWS_AT_ONCE: Final = 8192  # copied with the window's lock held: half a millisecond
_GROUP_ROWS: Final = 32_768
_STOP_SECONDS: Final = 60.0


class PartWriter:
    """Seals the kept rows that have left the rolling window.

    Args:
        window: Where the rows are.
        directory: Where the parts go.
        run: What every part says of the run.
        numbered: Batches that were selected by number: they outlive sampled ones under ``max_bytes``.
        failed: Called once, on the thread, with what the disk said; nothing is sealed after it. A method's object is
            not kept alive.
        seal_seconds: Longest time that rows wait to be sealed after they have left the window.
    """

    def __init__(
        self,
        window: Window,
        directory: TraceDirectory,
        run: RunInfo,
        numbered: Collection[int],
        failed: Callable[[Exception], None],
        seal_seconds: float = SEAL_SECONDS,
    ) -> None:
        self._window, self._directory, self._run = window, directory, run
        self._failed = weakref.WeakMethod(failed) if inspect.ismethod(failed) else lambda: failed
        self._numbered = np.array(sorted(numbered), np.int64)
        self._seal_seconds = seal_seconds
        self._part_rows = window.capacity // 2
        self._least_rows = window.capacity // 8
        self._sealed_to = 0
        self._sealing = False
        self._wake, self._moved = threading.Event(), threading.Event()
        self._ended = threading.Condition(window.lock)
        self._stopping = self._running = self._has_numbered = False
        self._thread = threading.Thread(target=self._work, name="overflow-recorder-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._running = True
        self._thread.start()

    def notice(self) -> None:
        """Wake the thread if there are rows enough for a part; called after each frame."""
        window = self._window
        if window.published - window.released >= self._part_rows and not self._wake.is_set() and self._is_due():
            self._wake.set()

    def _is_due(self) -> bool:
        # Where the window takes half the ring, what is behind it has to be worth a part too.
        window = self._window
        waiting = window.published - window.released
        return waiting >= self._part_rows and window.window_start - window.released >= self._least_rows

    def wait_for_room(self, released: int, seconds: float) -> bool:
        """Wait, at most so long, until the window has released more rows than those; not for a disk that has failed."""
        self._wake.set()
        until = time.monotonic() + seconds
        while self._window.released == released:
            self._moved.clear()  # first: what moves while the next line looks sets it again
            if self._window.released != released:
                break
            if not self._running or not self._moved.wait(max(0.0, until - time.monotonic())):
                return self._window.released != released
        return True

    def _work(self) -> None:
        try:
            self._seal_when_due()
        except Exception as error:  # noqa: BLE001  whatever the disk or a library says, training goes on
            failed = self._failed()
            if failed is not None:
                failed(error)
        finally:
            with self._ended:
                self._running = False
                self._ended.notify_all()
            self._moved.set()

    def _seal_when_due(self) -> None:
        sealed_at = time.monotonic()
        while not self._stopping:
            self._wake.wait(self._seal_seconds / 10)
            self._wake.clear()
            late = time.monotonic() - sealed_at >= self._seal_seconds
            if not self._stopping and (late or self._is_due()):
                self.seal(self._window.window_start)
                sealed_at = time.monotonic()

    def seal(self, stop: int) -> None:
        """Seal the kept rows below row number ``stop`` and release them; a kept window becomes a part of its own.

        Args:
            stop: A frame's first row, or the end.

        Raises:
            OSError: The disk refused; the rows stay in the ring.
            RuntimeError: This very method was interrupted, and what interrupted it wants to seal.
        """
        if self._sealing:
            raise RuntimeError("a part was being sealed")
        self._sealing = True
        try:
            for start, end, is_window in self._pieces(max(self._sealed_to, self._window.released), stop):
                self._seal_piece(start, end, is_window=is_window)
        finally:
            self._sealing = False

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, bool]]:
        """Cut a range of rows where a kept window begins or ends, if parts are ever removed."""
        for window in list(self._window.kept_windows) if self._directory.is_bounded else ():
            first, last = max(window[0], start), min(window[1], stop)
            if first < last:
                if start < first:
                    yield start, first, False
                yield first, last, True
                start = last
        if start < stop:
            yield start, stop, False

    def _seal_piece(self, start: int, stop: int, *, is_window: bool) -> None:
        self._has_numbered = False
        tables = self._tables(start, stop)
        first = next(tables, None)
        if first is not None:
            data = encode_part(itertools.chain([first], tables), self._run)
            self._directory.seal(data, WINDOW if is_window else NUMBERED if self._has_numbered else SAMPLED)
        self._sealed_to = stop
        self._window.release(stop)
        self._moved.set()

    def _tables(self, start: int, stop: int) -> Iterator[pa.Table]:
        """Yield row groups: together their rows and the Arrow columns made of them would take ten times a part."""
        waiting: list[pa.Table] = []
        for rows in self._kept_rows(start, stop):
            self._has_numbered |= bool(np.isin(rows["batch_number"], self._numbered).any())
            waiting.append(rows_to_table(rows, self._window.names))
            if sum(table.num_rows for table in waiting) >= _GROUP_ROWS:
                yield _one_table(waiting)
                waiting = []
        if waiting:
            yield _one_table(waiting)

    def _kept_rows(self, start: int, stop: int) -> Iterator[Any]:
        """Yield the kept rows, some whole frames at a time."""
        window = self._window
        while start < stop:
            with window.lock:  # a row that nobody wants may be overwritten by a later one at any time
                start = max(start, window.released)
                rows = window.rows(start, min(start + _ROWS_AT_ONCE, stop))
            if start + len(rows) < stop:
                # A frame that goes on behind the rows that were copied is left for the next time.
                present = int(rows[-1]["row_in_frame"]) + 1
                rows = rows if present == rows[-1]["rows_in_frame"] else rows[:-present]
            start += len(rows)
            kept = rows[rows["kept"] == 1]
            if len(kept):
                yield kept

    def abandon(self) -> None:
        """Let the thread end by itself, soon; no lock is taken: in a forked child one may be held for ever."""
        self._stopping = True

    def stop(self) -> None:
        """End the thread; a part that it is sealing is finished first.

        Raises:
            TimeoutError: The disk has not answered for a minute; the thread still waits for it.
        """
        self._stopping = True
        self._wake.set()
        if self._thread is threading.current_thread():
            return
        # A signal handler may call this while its own thread, in the middle of a frame, has the window's lock, which
        # the writer needs: a condition lets go of it while it waits.
        with self._ended:
            if not self._ended.wait_for(lambda: not self._running, _STOP_SECONDS):
                raise TimeoutError(f"the disk has not answered for {_STOP_SECONDS:.0f} seconds")


def _one_table(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()
