"""Short names for the frames that the tests of the reasoning are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from overflow_analyzer import open_trace
from overflow_analyzer.first_nonfinite.finding import Finding, find_first_nonfinite
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from overflow_analyzer.first_nonfinite.causes import Cause
    from overflow_analyzer.format.frames import Entry, Frame
    from overflow_analyzer.format.run_info import RunInfo


def bad(role: Any, context: str, *, nan: int = 0, inf: int = 0, neginf: int = 0, **changes: Any) -> Entry:
    """A float16 tensor of shape [4] with so many bad elements; the figures are what torch would give."""
    shape = changes.get("shape", (4,))
    numel = 1
    for size in shape:
        numel *= size
    finite = numel > nan + inf + neginf
    extreme = float("nan") if nan else float("inf")
    figures: dict[str, Any] = {
        "abs_min": float("nan") if nan else (0.5 if finite else extreme),
        "abs_max": extreme,
        "finite_abs_max": 2.0 if finite else None,
        "nan_count": nan,
        "posinf_count": inf,
        "neginf_count": neginf,
        "numel": numel,
    }
    return tensor(role, context, **{**figures, **changes})


def passing(number: int, batch: int, name: str, **changes: Any) -> Frame:
    """A frame with finite input and output."""
    return frame(number, batch, name, tensor("input", "input[0]"), tensor("output", "output"), **changes)


def making(number: int, batch: int, name: str, **changes: Any) -> Frame:
    """A frame that takes finite values in and gives nan out."""
    return frame(number, batch, name, tensor("input", "input[0]"), bad("output", "output", nan=1), **changes)


def carrying(number: int, batch: int, name: str, **changes: Any) -> Frame:
    """A frame that takes nan in and gives nan out."""
    return frame(number, batch, name, bad("input", "input[0]", nan=1), bad("output", "output", nan=2), **changes)


def absorbing(number: int, batch: int, name: str, **changes: Any) -> Frame:
    """A frame that takes nan in and gives finite values out."""
    return frame(number, batch, name, bad("input", "input[0]", nan=1), tensor("output", "output"), **changes)


def with_options(run: RunInfo = RUN, **options: Any) -> RunInfo:
    """The run with other options of the recorder."""
    return replace(run, options={**run.options, **options})


def find(
    path: Path, frames: Sequence[Frame], run: RunInfo = RUN, *, batch: int | None = None, window: int | None = None
) -> Finding | None:
    """Write one rank's frames and find the first inf/nan among them."""
    trace = open_trace(write_trace(path / "run.parquet", frames, run))
    return find_first_nonfinite(trace, batch=batch, frames=window)


def found(
    path: Path, frames: Sequence[Frame], run: RunInfo = RUN, *, batch: int | None = None, window: int | None = None
) -> Finding:
    """The same where there is one."""
    finding = find(path, frames, run, batch=batch, window=window)
    assert finding is not None
    return finding


def cause_of(path: Path, *frames: Frame, run: RunInfo = RUN) -> Cause:
    """The cause of the first inf/nan in these frames."""
    return found(path, frames, run).cause


def only_cause(path: Path, module_class: str, *entries: Entry) -> Cause:
    """The cause in a trace of one frame."""
    return cause_of(path, frame(0, 0, "m", *entries, in_batch=0, module_class=module_class))
