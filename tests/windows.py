"""Windows and storages filled with made-up frames: what the recorder does with frames, without a model."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overflow_analyzer.errors import EmptyTraceError
from overflow_analyzer.format.columns import KINDS, PHASES, ROLES
from overflow_analyzer.format.run_info import RunInfo
from overflow_analyzer.trace.opening import open_trace
from overflow_recorder.recorder_arguments import RecorderArguments
from overflow_recorder.statistics import Description, Figures
from overflow_recorder.storage.packed_tensor import TensorPacker
from overflow_recorder.storage.storage import Storage
from overflow_recorder.storage.window import FrameHead, Window

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame

RUN = RunInfo(run_id="test", rank=0, world_size=1, model_class="Model", started_ns=1)
TRAIN, TENSOR, OUTPUT = PHASES.index("train"), KINDS.index("tensor"), ROLES.index("output")
Entries = list[tuple[int, int, int, Any]]


def head_of(window: Window, batch: int = 0, name: str = "layer") -> FrameHead:
    """What a frame's rows share."""
    return FrameHead(batch, 0, 0, window.position(name), window.position("Linear"), TRAIN, 0, 1_700_000_000_000_000_000)


def entries_of(window: Window, value: float, rows: int = 2) -> Entries:
    """Rows whose abs max is ``value``, ``value + 1`` and so on."""
    pack = TensorPacker(window.position)
    described = Description("float32", "cpu", "strided", (2, 3), 6, None)
    entries = []
    for row in range(rows):
        figures = Figures(0.5, value + row, value + row, 0, 0, 0)
        entries.append((TENSOR, OUTPUT, window.position(f"output[{row}]"), pack(described, figures)))
    return entries


def append(
    window: Window, value: float, *, batch: int = 0, rows: int = 2, kept: bool = True, urgent: bool = False
) -> Any:
    """Append a frame that ``value_of`` knows again; returns its number or None."""
    return window.append(head_of(window, batch), entries_of(window, value, rows), kept=kept, urgent=urgent)


def publish(
    storage: Storage, value: float, *, batch: int = 0, rows: int = 2, selected: bool = True, urgent: bool = False
) -> Any:
    """Publish a frame as a hook does; returns its number or None."""
    window = storage.window
    return storage.publish(head_of(window, batch), entries_of(window, value, rows), selected=selected, urgent=urgent)


def make_storage(path: Path | None, *, run: RunInfo = RUN, failed: Any = None, **options: Any) -> Storage:
    """A storage with these recorder options; a failure of its thread fails the test unless it is expected."""
    return Storage(path, run, RecorderArguments(**options), 4, failed or _unexpected)


def _unexpected(error: Exception) -> None:
    raise error


def value_of(frame: Frame) -> float:
    """The value a frame was appended with; checks that its rows are those of one frame."""
    values = [entry.abs_max for entry in frame.entries]
    first = values[0]
    assert first is not None
    assert values == [first + row for row in range(len(values))]
    return first


@dataclass(frozen=True)
class Left:
    """What a trace's only rank left."""

    values: dict[int, float]
    """By frame number, the value it was appended with."""
    ended: str
    lost: tuple[str, ...]
    dropped: int


def read_left(trace: Path) -> Left:
    """Open a trace and check what holds of every one: frames in order, none twice, none in part."""
    try:
        (rank,) = open_trace(trace).ranks
    except EmptyTraceError:
        return Left({}, "empty", (), 0)
    frames = list(rank.frames())
    numbers = [frame.frame_number for frame in frames]
    assert numbers == sorted(set(numbers)), "a frame is there twice, or out of order"
    values = {frame.frame_number: value_of(frame) for frame in frames}
    assert rank.frame_count == len(values)
    assert rank.rows == sum(len(frame.entries) for frame in frames)
    return Left(values, rank.ended, rank.lost, rank.dropped_frames)


def copy_as_killed(trace: Path, copy: Path) -> Path:
    """Copy a living run's files: what the kernel would keep if the process died now."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(trace, copy)
    return copy


def bytes_of(directory: Path) -> int:
    """Bytes of all files below a directory."""
    total = 0
    for one in directory.rglob("*"):
        try:
            total += one.stat().st_size if one.is_file() else 0
        except FileNotFoundError:
            continue
    return total
