"""``DebugUnderflowOverflow``: the drop-in for the class of the same name, on top of ``TraceRecorder``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_recorder.builtin_callbacks import PrintFrames
from overflow_recorder.trace_recorder import TraceRecorder

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from torch import nn


class DebugUnderflowOverflow(TraceRecorder):
    """Prints the standard report of the last frames at the first inf/nan and raises, or prints chosen batches whole.

    It attaches when it is made and stays until it has raised, is closed, or the process ends.

    Args:
        model: The model to debug.
        max_frames_to_save: How many frames back to report.
        trace_batch_nums: 0-based batches to print whole; an empty list is none. With any, detection is off.
        abort_after_batch_num: Raise ``BatchLimitReached``, a ValueError, when this batch has ended.
        path: Also write a trace there, for ``overflow-analyze``.
        replay: Run the module that made the inf/nan once more, to name the operation and the line of source.

    Raises:
        TraceExistsError: Something is at the path already.

    Example:
        ``DebugUnderflowOverflow(model, trace_batch_nums=[1, 3], abort_after_batch_num=3)``
    """

    _masks_may_pass = False  # the known class raises at any inf

    def __init__(
        self,
        model: nn.Module,
        max_frames_to_save: int = 21,
        trace_batch_nums: Iterable[int] | None = None,
        abort_after_batch_num: int | None = None,
        path: str | os.PathLike[str] | None = None,
        replay: bool = True,
    ) -> None:
        batches = list(trace_batch_nums or ()) or None
        super().__init__(
            model,
            path,
            max_frames_to_save=max_frames_to_save,
            trace_batch_nums=batches,
            abort_after_batch_num=abort_after_batch_num,
            replay=replay,
            callbacks=[PrintFrames] if batches else [],
        )
        self.start()
