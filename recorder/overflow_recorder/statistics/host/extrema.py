"""Extrema and exact counts of elements that are read piece by piece; large tensors with torch's threads.

For every piece the threads are woken and waited for twice. Where other processes want the same cores, such a wait can
take longer than the whole tensor. When waits add up, the rest, and what comes soon after, goes the serial way.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from overflow_recorder.statistics.figures import Figures
from overflow_recorder.statistics.formats import Array, Format, masked
from overflow_recorder.statistics.memory import scratch
from overflow_recorder.statistics.quiet import quiet

if TYPE_CHECKING:
    from collections.abc import Iterable

LARGE_BYTES = 4 << 20
"""From here on waking torch's threads for each piece costs less than they save."""

_PATIENCE = 5e-3  # seconds that threads may be late in all
_SLOWEST = 4e9  # bytes a second, about what one thread reads; with several it is twice that and more
_PAUSE = 2.0  # seconds

_pause_ends = 0.0


@dataclass(slots=True)
class Extremes:
    """What has been found so far in a tensor that has at least one element."""

    form: Format
    """What the magnitudes stand for."""
    low: int = 1 << 64
    """The smallest magnitude."""
    high: int = -1
    """The largest finite magnitude; -1 where no element is finite."""
    nan: int = 0
    infinite: int = 0
    negative: int = 0
    """Of the infinite ones, how many are negative."""

    def add(self, array: Array, start: int, magnitudes: Array, lowest: int, highest: int) -> None:
        """Add a piece of an array whose extreme magnitudes are known; it is read again where it has inf or nan."""
        if highest > self.form.limit:
            highest = self._count(array[start : start + magnitudes.size], magnitudes)
        self.low, self.high = min(self.low, lowest), max(self.high, highest)

    def _count(self, piece: Array, magnitudes: Array) -> int:
        """Count what is not finite in a piece, and return its largest finite magnitude, -1 where it has none."""
        finite = magnitudes[magnitudes <= self.form.limit]
        infinite = 0
        if self.form.infinity is not None:
            infinite = int(np.count_nonzero(magnitudes == self.form.infinity))
            self.infinite += infinite
            self.negative += int(np.count_nonzero(piece == self.form.negative_infinity))
        self.nan += magnitudes.size - finite.size - infinite
        return int(finite.max()) if finite.size else -1

    def read(self, pieces: Iterable[Array]) -> None:
        """Read one-dimensional contiguous arrays of the format's source, none larger than the scratch."""
        form, room = self.form, scratch.typed[self.form.source]
        for piece in pieces:
            magnitudes = form.magnitudes(piece, room[: piece.size], form)
            # argmin and argmax cost a fifth of a reduction's call, and are as quick in the loop.
            lowest, highest = magnitudes.argmin(), magnitudes.argmax()
            self.add(piece, 0, magnitudes, magnitudes.item(lowest), magnitudes.item(highest))

    def figures(self) -> Figures:
        """The figures, without what only full statistics have."""
        low, high = (math.inf, None) if self.high < 0 else self.form.values(self.low, self.high)
        top = high if high is not None and not self.infinite else math.inf
        if self.nan:
            low = top = math.nan
        return Figures(low, top, high, self.nan, self.infinite - self.negative, self.negative)


def is_large(array: Array, form: Format) -> bool:
    """Whether `read_in_parallel` can read these elements, and would be quicker."""
    return (
        array.nbytes >= LARGE_BYTES
        and form.magnitudes is masked
        and array.ndim == 1
        and array.strides[0] == array.itemsize
        and torch.get_num_threads() > 1
        and time.monotonic() >= _pause_ends
    )


def read_in_parallel(extremes: Extremes, array: Array, form: Format) -> int:
    """Read whole pieces of a contiguous array into `extremes`, for as long as the threads come when they are called.

    Returns:
        How many elements have been read.
    """
    global _pause_ends  # noqa: PLW0603 # whether cores are free is a fact about the whole process
    room, found = scratch.large().view(form.source), np.empty(2, form.source)
    step = room.size
    with quiet():
        pieces = torch.split(torch.from_numpy(array[: array.size // step * step]), step)
        mask, magnitudes, both = torch.from_numpy(form.mask), torch.from_numpy(room), torch.from_numpy(found).unbind()
        done, began = 0, time.perf_counter()
        for piece in pieces:
            torch.bitwise_and(piece, mask, out=magnitudes)
            torch.aminmax(magnitudes, out=both)
            extremes.add(array, done, room, found.item(0), found.item(1))
            done += step
            if time.perf_counter() - began > _PATIENCE + done * form.source.itemsize / _SLOWEST:
                _pause_ends = time.monotonic() + _PAUSE
                break
    return done
