"""The standard report: frames -> text. The only place that formats it, live and offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from overflow_analyzer.text.escape import escape

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overflow_analyzer.format.frames import Entry, Frame


class Line(NamedTuple):
    """A line of a report, and what it is about."""

    text: str
    frame: Frame | None = None
    entry: Entry | None = None
    """None on the line that names the frame's module."""


_HEADER = "abs min  abs max  metadata"
_INDENT = " " * 17


def render_report(frames: Sequence[Frame], batch_number: int) -> str:
    """Return the standard report of the frames up to a detection.

    Args:
        frames: The last frames, the one with the inf/nan at the end.
        batch_number: The batch of the detection.

    Returns:
        Lines ended by a newline each, the last one too.
    """
    return "".join(f"{line.text}\n" for line in report_lines(frames, batch_number))


def report_lines(frames: Sequence[Frame], batch_number: int) -> list[Line]:
    """Return the lines of ``render_report``, none of them ended."""
    head = (f"Detected inf/nan during batch_number={batch_number}", f"Last {len(frames)} forward frames:", _HEADER)
    return [*map(Line, head), *_frame_lines(frames)]


def render_batch(frames: Iterable[Frame]) -> str:
    """Return frames as tracing mode prints them: each batch that starts among them behind its marker."""
    return "".join(f"{line.text}\n" for line in _frame_lines(frames))


def render_frame(frame: Frame) -> list[str]:
    """Return the lines of one frame, without a batch marker."""
    return [line.text for line in _lines(frame)]


def _lines(frame: Frame) -> list[Line]:
    # The report of the field has no buffers; one is shown where it is what went wrong.
    shown = [entry for entry in frame.entries if entry.role != "buffer" or entry.nonfinite]
    named = Line(f"{_INDENT} {escape(frame.module_name)} {escape(frame.module_class)}", frame)
    return [named, *(Line(f"{_figures(entry):>17} {escape(entry.context)}", frame, entry) for entry in shown)]


def _frame_lines(frames: Iterable[Frame]) -> list[Line]:
    lines: list[Line] = []
    for frame in frames:
        if frame.frame_in_batch == 0:
            lines += map(Line, ("", "", f"{_INDENT} *** Starting batch number={frame.batch_number} ***", _HEADER))
        lines += _lines(frame)
    return lines


def _figures(entry: Entry) -> str:
    if entry.kind == "none":
        return "None"
    if entry.kind == "other":
        return "not a tensor"
    if entry.abs_min is None or entry.abs_max is None:
        return "empty" if entry.numel == 0 else "no values"
    return f"{entry.abs_min:8.2e} {entry.abs_max:8.2e}"
