"""Where frames go: the window, and behind it one rank's directory with its writer; without a path the window alone."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

from overflow_analyzer.schema import RING_HEADER_SIZE, RING_ROW
from overflow_recorder.reproducibility import seeds_in_force
from overflow_recorder.trace_directory import TraceDirectory
from overflow_recorder.window import Window
from overflow_recorder.writer import PartWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overflow_analyzer.run_info import EndInfo, RunInfo
    from overflow_recorder.recorder_arguments import RecorderArguments
    from overflow_recorder.recording import Unpublished

__all__ = ["Storage", "ring_capacity"]

_WAIT_SECONDS: Final = 0.25
"""Longest wait of one frame for a slow disk. After a wait in vain none waits until the disk has moved."""
_WINDOW_ROWS: Final = 4096
_WRITING_ROWS: Final = 65_536
"""Rows of a ring that stages whole batches: 16 MiB, so that parts have tens of thousands of rows each."""
_LEAST_ROWS: Final = 64
_MOST_ROWS: Final = 1 << 20


def ring_capacity(options: RecorderArguments, rows_per_frame: int) -> int:
    """Return the ring's rows, fixed at the start.

    Args:
        options: The window's size, whether any batch is written whole, and the bound on the disk.
        rows_per_frame: The most rows of an ordinary frame of this model.
    """
    rows = max(_WINDOW_ROWS, options.max_frames_to_save * rows_per_frame)
    if options.trace_batch_nums or options.every_n_batches:
        rows = max(rows, _WRITING_ROWS)
    if options.max_bytes is not None:
        rows = min(rows, options.max_bytes // 4 // RING_ROW.itemsize)
    return max(_LEAST_ROWS, min(rows, _MOST_ROWS))


class Storage:
    """Takes frames, loses none that was asked for, and never makes training wait for long.

    Args:
        path: The trace's directory; None keeps the window in memory and nothing else.
        run: Who records.
        options: The recorder's.
        rows_per_frame: See ``ring_capacity``.
        failed: Called when the disk refuses in the background.

    Raises:
        TraceExistsError: Something is at the path that may not be replaced.
        OSError: The disk refuses.
    """

    def __init__(
        self,
        path: Path | None,
        run: RunInfo,
        options: RecorderArguments,
        rows_per_frame: int,
        failed: Callable[[Exception], None],
    ) -> None:
        self._run = run
        self._directory: TraceDirectory | None = None
        self._writer: PartWriter | None = None
        self._disk_is_stuck_at = -1
        capacity = ring_capacity(options, rows_per_frame)
        if path is None:
            self.window = Window(None, capacity, options.max_frames_to_save)
            return
        ring_bytes = RING_HEADER_SIZE + capacity * RING_ROW.itemsize
        budget = None if options.max_bytes is None else max(options.max_bytes - ring_bytes, options.max_bytes // 2)
        self._directory = TraceDirectory(path, run.rank, max_bytes=budget, overwrite=options.overwrite)
        try:
            if run.rank == 0:
                self._directory.clear_other_ranks(run.world_size)
            self._directory.write_run(run)
            self.window = Window(self._directory.path, capacity, options.max_frames_to_save)
        except BaseException:
            self._directory.release()
            raise
        self._writer = PartWriter(self.window, self._directory, run, options.trace_batch_nums or (), failed)

    def publish(self, frame: Unpublished) -> int | None:
        """Put a measured frame into the window; returns its number, or None where the disk is too slow for it."""
        selected = frame.batch.selected
        number = self.window.append(frame.head, frame.entries, kept=selected)  # type: ignore[arg-type]
        if number is None and selected and self._wait_for_disk():
            number = self.window.append(frame.head, frame.entries, kept=selected)  # type: ignore[arg-type]
        if self._writer is not None:
            self._writer.notice(self.window.published)
        return number

    def _wait_for_disk(self) -> bool:
        released = self.window.released
        if self._writer is None or released == self._disk_is_stuck_at:
            return False
        if self._writer.wait_for_room(_WAIT_SECONDS):
            return True
        self._disk_is_stuck_at = released
        return False

    def note_end(self, end: EndInfo) -> None:
        """Say how the run ended where a full disk cannot prevent it."""
        self.window.write_end(end.to_json())

    def close(self, end: EndInfo) -> None:
        """Seal the window and everything wanted, complete ``_run.json``, remove the ring, in this order.

        Raises:
            OSError: The disk refused; then the ring stays and has what is not sealed.
        """
        sealed = False
        try:
            self.note_end(end)
            self.window.keep_window()
            if self._directory is not None and self._writer is not None:
                self._writer.stop()
                self._writer.seal(self.window.published, detection=end.how == "detected")
                removed = self._directory.parts_removed
                end = dataclasses.replace(end, parts_removed=removed, frames_dropped=self.window.dropped_frames)
                self._directory.write_run(dataclasses.replace(self._run, end=end, seeds=seeds_in_force() or None))
            sealed = True
        finally:
            self._let_go(remove=sealed)

    def abandon(self) -> None:
        """In a forked child: close its copies of the descriptors; the parent's trace is not touched."""
        self._let_go(remove=False)

    def _let_go(self, *, remove: bool) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.window.close(remove=remove)
        if self._directory is not None:
            self._directory.release()
