"""Large tensors, with torch's threads.

For every piece the threads are woken and waited for twice. Where other processes want the same cores, such a wait can
take longer than the whole tensor. When waits add up, the rest, and what comes soon after, goes the serial way.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import torch

from overflow_recorder.statistics.formats import Array, Format, masked
from overflow_recorder.statistics.memory import scratch
from overflow_recorder.statistics.quiet import quiet

if TYPE_CHECKING:
    from overflow_recorder.statistics.host.extrema import Extremes

LARGE_BYTES = 4 << 20
"""From here on waking torch's threads for each piece costs less than they save."""

_PATIENCE = 5e-3  # seconds that threads may be late in all
_SLOWEST = 4e9  # bytes a second, about what one thread reads; with several it is twice that and more
_PAUSE = 2.0  # seconds

_pause_ends = 0.0


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
            if time.perf_counter() - began > _PATIENCE + done * form.width / _SLOWEST:
                _pause_ends = time.monotonic() + _PAUSE
                break
    return done
