"""The recorder's own behaviour as callbacks: printing, raising, warning, stopping."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from typing import TYPE_CHECKING

from overflow_analyzer.render.operation import change_lines, operation_lines
from overflow_analyzer.render.report import render_batch, render_report
from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.wording import section_lines
from overflow_recorder.callbacks import RecorderCallback
from overflow_recorder.errors import BatchLimitReached, NonFiniteError, NonFiniteWarning
from overflow_recorder.events import Stop
from overflow_recorder.faults import describe_error, raised_by_signal_handler, warn
from overflow_recorder.replay import find_operation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_analyzer.format.frames import Frame
    from overflow_recorder.events import BatchEvent, FrameEvent, NonFiniteEvent
    from overflow_recorder.trace_recorder import TraceRecorder


@contextlib.contextmanager
def _faults_of(recorder: TraceRecorder) -> Iterator[None]:
    """Where one of the recorder's own callbacks fails, the recorder switches itself off, and nothing is raised."""
    try:
        yield
    except Exception as error:  # noqa: BLE001
        recorder.switch_off(error)


class PrintReport(RecorderCallback):
    """Print the standard report of the window to stdout when an inf/nan is detected."""

    def on_nonfinite(self, recorder: TraceRecorder, event: NonFiniteEvent) -> None:
        """Print it between the blank lines that its readers know."""
        with _faults_of(recorder):
            _print_nonfinite_contexts(event.frame)
            _print(f"\n{render_report(event.window, event.batch_number)}\n\n")


class NameOperation(RecorderCallback):
    """Run the module that made an inf/nan once more; print, and write into the trace, what it shows and what changed.

    Args:
        replay: Whether to run anything and print anything. What changed is written in any case.
    """

    def __init__(self, replay: bool) -> None:
        self._replay = replay

    def on_nonfinite(self, recorder: TraceRecorder, event: NonFiniteEvent) -> None:
        """Name the operation, or say why none is named. What fails here is a warning: the report is out already."""
        try:
            origin = find_operation(recorder.model, event.frame, replay=self._replay)
            origin = dataclasses.replace(origin, changes=event.changes)
            recorder.write_origin(origin)
        except Exception as error:
            if raised_by_signal_handler(error):
                raise
            warn(f"the operation that made the inf/nan could not be named ({describe_error(error)})")
            return
        if self._replay:
            sections = (("Made by", operation_lines(origin)), ("What changed", change_lines(origin)))
            lines = section_lines(one for one in sections if one[1])
            _print("\n".join(escape(line) for line in lines) + "\n\n")


class PrintFrames(RecorderCallback):
    """Print each frame of the selected batches to stdout as it is measured."""

    def on_frame(self, recorder: TraceRecorder, event: FrameEvent) -> None:
        """Print one frame, behind its batch's marker if it is the first."""
        with _faults_of(recorder):
            _print_nonfinite_contexts(event.frame)
            _print(render_batch([event.frame]).removesuffix("\n"))


class StopAtNonFinite(RecorderCallback):
    """End the run with a ``NonFiniteError`` when an inf/nan is detected."""

    def on_nonfinite(self, recorder: TraceRecorder, event: NonFiniteEvent) -> Stop:
        """Say what was found, and where it is explained."""
        what = _sentence(event)
        where = "" if recorder.path is None else f"; explained by: overflow-analyze {recorder.path}"
        message = f"{what}; the report of the last {len(event.window)} frames is printed above{where}"
        return Stop(NonFiniteError(message), what, how="detected")


class WarnNonFinite(RecorderCallback):
    """Warn, once a module, when an inf/nan is detected; training goes on."""

    def on_nonfinite(self, recorder: TraceRecorder, event: NonFiniteEvent) -> None:
        """Warn."""
        warnings.warn(_sentence(event), NonFiniteWarning, stacklevel=2)


class StopAfterBatch(RecorderCallback):
    """End the run with ``BatchLimitReached`` when a batch has ended.

    Args:
        batch_number: The last batch, 0-based.
    """

    def __init__(self, batch_number: int) -> None:
        self._batch_number = batch_number

    def on_batch_end(self, recorder: TraceRecorder, event: BatchEvent) -> Stop | None:
        """End the run if the batch was reached."""
        if event.batch_number < self._batch_number:
            return None
        reason = f"batch {event.batch_number} has ended (abort_after_batch_num={self._batch_number})"
        return Stop(BatchLimitReached(f"stopped as asked: {reason}"), reason)


def _sentence(event: NonFiniteEvent) -> str:
    entry, frame = event.entries[0], event.frame
    return f"inf/nan detected in {entry.context} of {frame.label}, batch {event.batch_number}: {entry.counts}"


def _print_nonfinite_contexts(frame: Frame) -> None:
    for entry in frame.nonfinite_entries:
        if entry.nan_count:
            _print(f"{entry.context} has nans")
        if entry.posinf_count or entry.neginf_count:
            _print(f"{entry.context} has infs")


def _print(text: str) -> None:
    # A closed or broken stdout is no reason to stop a training.
    with contextlib.suppress(OSError, ValueError):
        print(text, flush=True)  # noqa: T201  the report is the product
