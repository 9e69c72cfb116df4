"""What processes do that record and end in some way; called by name in ``tests.crew``."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from overflow_analyzer.trace.opening import open_trace
from overflow_recorder import TraceRecorder
from overflow_recorder.storage import storage as storage_room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MODULES = ("0", "1", "2.0", "2.1", "2", "3", "")
"""In order of completion: so many frames has a batch."""
FRAMES = len(MODULES)
ROWS = 4 + 2 + 4 + 2 + 2 + 4 + 2
"""Of a batch: weight, bias, input and output of three Linears; input and output of the others."""


class Seen:
    """A number that outlives its process: how many frames' hooks have returned.

    Args:
        path: A file of eight bytes.
    """

    def __init__(self, path: str | Path) -> None:
        # A process may have been killed between making the file and filling it.
        if not Path(path).exists() or Path(path).stat().st_size < 8:
            Path(path).write_bytes(bytes(8))
        with Path(path).open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)

    @property
    def frames(self) -> int:
        """The number so far."""
        return int(struct.unpack("<q", self._memory[:])[0])

    @frames.setter
    def frames(self, frames: int) -> None:
        self._memory[:] = struct.pack("<q", frames)


def make_the_ring_small(rows: int = 256) -> None:
    """So that parts are sealed after a few batches."""
    storage_room._WINDOW_ROWS, storage_room._STAGING_ROWS = rows, 0  # type: ignore[misc]


def wait_as_long_as_it_takes() -> None:
    """So that no frame gives way to a machine that is busy with something else."""
    storage_room._WAIT_SECONDS, storage_room._WAIT_SHARE = 60.0, 1e9  # type: ignore[misc]


def make_model() -> nn.Sequential:
    """A small model whose figures depend on the batch's number alone."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), inner, nn.Linear(8, 8))


def input_of(batch: int) -> torch.Tensor:
    """A batch."""
    return torch.full((2, 8), 1.0 + batch % 1000)


def count_frames(model: nn.Module, seen: Seen) -> None:
    """Count every frame after the recorder's own hook has returned."""

    def count(*_: object) -> None:
        seen.frames += 1

    for module in model.modules():
        module.register_forward_hook(count)


def train(path: str, seen: str, options: dict[str, Any], batches: int | None = None, pause: float = 0.0) -> None:
    """Record a run of so many batches, or one without an end."""
    model, counter = make_model(), Seen(seen)
    with TraceRecorder(model, path, **options):
        count_frames(model, counter)
        for batch in itertools.count() if batches is None else range(batches):
            model(input_of(batch))
            if pause:
                time.sleep(pause)


def train_and_end(path: str, seen: str, options: dict[str, Any], batches: int, ending: str) -> None:
    """Record so many batches and end in some way inside the with block, or after the first module of the next batch."""
    model, counter = make_model(), Seen(seen)
    with TraceRecorder(model, path, **options):
        count_frames(model, counter)
        for batch in range(batches):
            model(input_of(batch))
        if ending == "an exception in someone else's hook":
            model[1].register_forward_hook(_raise)
            model(input_of(batches))
        ENDINGS[ending]()


def _raise(*_: object) -> None:
    raise RuntimeError("not the recorder's")


def _signal_self(number: int) -> Callable[[], None]:
    def end() -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    return end


ENDINGS: dict[str, Callable[[], Any]] = {
    "an exception": _raise,
    "an exception in someone else's hook": _raise,
    "sys.exit": lambda: sys.exit(3),
    "os._exit": lambda: os._exit(3),
    "os.abort": os.abort,
    "a segmentation fault": lambda: ctypes.string_at(0),
    "SIGKILL": _signal_self(signal.SIGKILL),
    "SIGTERM": _signal_self(signal.SIGTERM),
    "SIGHUP": _signal_self(signal.SIGHUP),
    "SIGINT": _signal_self(signal.SIGINT),
    "SIGXCPU": _signal_self(signal.SIGXCPU),
}


def rows_of(path: str | Path, rank: int = 0) -> dict[int, list[dict[str, Any]]]:
    """The rows of a rank's trace by frame number, without the time; checks their order and that no frame is twice."""
    frames: dict[int, list[dict[str, Any]]] = {}
    last = -1
    for table in open_trace(path).rank(rank).tables():
        rows: Iterable[dict[str, Any]] = table.drop_columns(["time_ns"]).to_pylist()
        for number, group in itertools.groupby(rows, lambda row: row["frame_number"]):
            assert number > last, f"frame {number} comes after frame {last}"
            last = number
            frames[number] = list(group)
    return frames


def warnings_in(output: str) -> list[str]:
    """The recorder's warnings: as such, or where warnings are errors as lines."""
    return [line for line in output.splitlines() if "RecorderWarning: " in line or line.startswith("overflow-trace: ")]
