"""Where frames go: the window, and behind it one rank's directory with its writer; without a path the window alone."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from typing import TYPE_CHECKING, Any, Final

from overflow_analyzer.format.ring import rows_to_table
from overflow_analyzer.format.ring_layout import RING_ROW
from overflow_recorder.helpers.reproducibility import seeds_in_force
from overflow_recorder.storage.directory import WINDOW, TraceDirectory
from overflow_recorder.storage.name_dictionary import MOST_NAMES_BYTES
from overflow_recorder.storage.sealing import encode_part
from overflow_recorder.storage.window import Window
from overflow_recorder.storage.writer import PartWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch.optim import Optimizer

    from overflow_analyzer.format.modules import Modules
    from overflow_analyzer.format.origin import Origin
    from overflow_analyzer.format.run_info import EndInfo, RunInfo
    from overflow_recorder.recorder_arguments import RecorderArguments
    from overflow_recorder.storage.packed_tensor import PackedTensor
    from overflow_recorder.storage.window import FrameHead

    _Entries = Sequence[tuple[int, int, int, PackedTensor]]


# What a frame may wait for a slow disk: so long at once, and all frames together not more than that and a twentieth of
# the run. After a wait in vain none waits until the disk has moved.
_WAIT_SECONDS: Final = 0.25
_WAIT_TOTAL_SECONDS: Final = 1.0
_WAIT_SHARE: Final = 0.05
_WINDOW_ROWS: Final = 4096
_STAGING_ROWS: Final = 131_072
"""Rows of a ring that stages whole batches: 32 MiB, so that a part has tens of thousands of rows."""
_LEAST_ROWS: Final = 64
_MOST_ROWS: Final = 1 << 20


def ring_capacity(options: RecorderArguments, rows_per_frame: int, *, staging: bool) -> int:
    """Return the ring's rows, fixed at the start.

    Args:
        options: The window's size and the bound on the disk, of which the ring takes at most a quarter.
        rows_per_frame: The most rows of an ordinary frame of this model.
        staging: Whether rows wait here to be sealed.
    """
    window = 2 * options.max_frames_to_save * rows_per_frame
    rows = max(_WINDOW_ROWS, window + _STAGING_ROWS if staging else window)
    if options.max_bytes is not None:
        rows = min(rows, options.max_bytes // 4 // RING_ROW.itemsize)
    return max(_LEAST_ROWS, min(rows, _MOST_ROWS))


class Storage:
    """Takes frames, loses no selected one, and never makes training wait for long.

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
        self._run, self._options, self._failed = run, options, failed
        self.notes: tuple[str, ...] = ()
        """What RunInfo says besides when the run has ended."""
        self.has_frames = False
        """Whether any frame was published."""
        self._failed_batch: Any = None
        self._writer: PartWriter | None = None
        self._disk_is_stuck_at = -1
        self._started, self._waited = time.monotonic(), 0.0
        selecting = bool(options.trace_batch_nums or options.every_n_batches)
        self._capacity = ring_capacity(options, rows_per_frame, staging=selecting and path is not None)
        self._directory: TraceDirectory | None = None
        if path is not None:
            bound, overwrite = options.max_bytes, options.overwrite
            self._directory = TraceDirectory(path, run.rank, run.world_size, max_bytes=bound, overwrite=overwrite)
        self._open()

    def reopen(self) -> None:
        """Go on in the same trace after ``close``: frames are counted on, and more parts follow.

        Raises:
            TraceExistsError: The trace is another run's by now, or could not be completed.
            OSError: The disk refuses.
        """
        if self._directory is not None:
            self._directory.reopen(self._run.run_id)
        earlier = self.window
        self._disk_is_stuck_at = -1
        self._open()
        self.window.continue_after(earlier)

    def _open(self) -> None:
        options, directory = self._options, self._directory
        if directory is None:
            self.window = Window(None, self._capacity, options.max_frames_to_save)
            return
        bound = MOST_NAMES_BYTES if options.max_bytes is None else min(MOST_NAMES_BYTES, options.max_bytes // 4)
        try:
            directory.write_run(self._run)
            self.window = Window(directory.path, self._capacity, options.max_frames_to_save, max_names_bytes=bound)
        except BaseException:
            directory.release()
            raise
        self._writer = PartWriter(self.window, directory, self._run, options.trace_batch_nums or (), self._failed)
        self._writer.start()

    def publish(self, head: FrameHead, entries: _Entries, *, selected: bool, urgent: bool = False) -> int | None:
        """Put a measured frame into the window.

        Args:
            head: What its rows share.
            entries: Its rows, as ``Window.append`` takes them.
            selected: Whether its batch is written whole; any other frame is in the trace if it is in the window when
                the run ends.
            urgent: Whether it is the one that a detection is about: it always finds room.

        Returns:
            Its number, or None where the disk is too slow for it: then it is counted as dropped.
        """
        writer = self._writer
        kept = writer is not None and selected
        self.has_frames = True
        number = self.window.append(head, entries, kept=kept, urgent=urgent)
        if writer is None:
            return number
        if number is None and kept and self._wait_for_disk(writer):
            number = self.window.append(head, entries, kept=kept, urgent=urgent)
        if number is None:
            self.window.drop_frame()
        writer.notice()
        return number

    def _wait_for_disk(self, writer: PartWriter) -> bool:
        released, now = self.window.released, time.monotonic()
        allowed = _WAIT_TOTAL_SECONDS + _WAIT_SHARE * (now - self._started) - self._waited
        if released == self._disk_is_stuck_at or allowed <= 0:
            return False
        moved = writer.wait_for_room(released, min(_WAIT_SECONDS, allowed))
        self._waited += time.monotonic() - now
        if not moved:
            self._disk_is_stuck_at = released
        return moved

    def note_optimizer(self, optimizer: Optimizer) -> None:
        """Put an optimizer's class and numbers into ``_run.json``, when it is first seen; closing tries again."""
        name = type(optimizer).__name__
        if name in self._run.optimizers:
            return
        defaults = getattr(optimizer, "defaults", {}).items()
        numbers = {key: value for key, value in defaults if type(value) in (int, float) and math.isfinite(value)}
        self._run = dataclasses.replace(self._run, optimizers={**self._run.optimizers, name: numbers})
        with contextlib.suppress(OSError):
            self.write_notes()

    def keep_batch(self, batch_number: int) -> None:
        """Keep what the ring still has of a batch that failed: ``close`` puts it into the trace."""
        self._failed_batch = self.window.rows_before_window(batch_number)

    def write_notes(self) -> None:
        """Put the notes into ``_run.json`` while the run goes on.

        Raises:
            OSError: The disk refused.
        """
        if self._directory is not None:
            self._directory.write_run(dataclasses.replace(self._run, notes=self.notes))

    def write_origin(self, origin: Origin) -> None:
        """Write which operation made an inf/nan; without a path, nowhere.

        Raises:
            OSError: The disk refused.
        """
        if self._directory is not None:
            self._directory.write_origin(origin)

    @property
    def most_modules_bytes(self) -> int:
        """The most bytes of what ``write_modules`` writes; 0 without a path."""
        return 0 if self._directory is None else self._directory.most_modules_bytes

    def write_modules(self, modules: Modules) -> None:
        """Write what every module is; without a path, nowhere.

        Raises:
            OSError: The disk refused.
        """
        if self._directory is not None:
            self._directory.write_modules(modules)

    def note_end(self, end: EndInfo) -> None:
        """Say how the run ended where a full disk cannot prevent it."""
        self.window.write_end(self._with_counts(end))

    def _with_counts(self, end: EndInfo) -> EndInfo:
        removed = 0 if self._directory is None else self._directory.parts_removed
        return dataclasses.replace(end, frames_dropped=self.window.dropped_frames, parts_removed=removed)

    def close(self, end: EndInfo) -> None:
        """Seal the window and all other kept rows, complete ``_run.json``, remove the ring, in this order.

        Raises:
            OSError: The disk refused; then the ring stays and has what is not sealed.
        """
        self.window.keep_window()
        self.note_end(end)
        directory, writer = self._directory, self._writer
        if directory is None or writer is None:
            self.window.close()
            return
        writer.stop()  # where that takes too long, the thread still needs all that is open
        try:
            self._seal_failed_batch(directory)
            writer.seal(self.window.published)
            end, seeds = self._with_counts(end), seeds_in_force() or None
            directory.write_run(dataclasses.replace(self._run, end=end, seeds=seeds, notes=self.notes))
            self.window.close()  # first: not every system removes a file that is open
            directory.remove_ring()
        finally:
            self._let_go()

    def _seal_failed_batch(self, directory: TraceDirectory) -> None:
        rows, self._failed_batch = self._failed_batch, None
        if rows is not None and len(rows):
            directory.seal(encode_part([rows_to_table(rows, self.window.names)], self._run), WINDOW)

    def abandon(self) -> None:
        """Let go of everything and leave the files as they are: a forked child's copy, or a start that failed."""
        if self._writer is not None:
            self._writer.abandon()
        self._let_go()

    def _let_go(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self.window.close()
        if self._directory is not None:
            self._directory.release()
