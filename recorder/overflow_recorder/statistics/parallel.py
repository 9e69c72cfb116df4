"""Extrema of large tensors with torch's threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from overflow_recorder.statistics.extrema import NonFinite, as_figures
from overflow_recorder.statistics.formats import Array, Format, masked
from overflow_recorder.statistics.quiet import quiet

if TYPE_CHECKING:
    from overflow_recorder.statistics.figures import Figures

LARGE_BYTES = 4 << 20
"""From here on waking torch's threads for each piece costs less than they save."""

_PIECE_BYTES = 1 << 20


def is_large(array: Array, form: Format) -> bool:
    """Whether `parallel_extrema` can read these elements, and would be quicker."""
    return (
        array.nbytes >= LARGE_BYTES
        and form.magnitudes is masked
        and array.ndim == 1
        and array.strides[0] == array.itemsize
        and torch.get_num_threads() > 1
    )


def parallel_extrema(array: Array, form: Format) -> Figures:
    """As `extrema`, for one contiguous array."""
    low, high, odd = form.limit + 1, -1, None
    step = _PIECE_BYTES // array.itemsize
    room, extremes = np.empty(step, form.source), np.empty(2, form.source)
    with quiet():
        mask, room_tensor = torch.from_numpy(form.mask), torch.from_numpy(room)
        both = torch.from_numpy(extremes).unbind()
        for start, piece in zip(range(0, array.size, step), torch.split(torch.from_numpy(array), step), strict=True):
            magnitudes = room_tensor[: piece.numel()]
            torch.bitwise_and(piece, mask, out=magnitudes)
            torch.aminmax(magnitudes, out=both)
            lowest, highest = extremes.item(0), extremes.item(1)
            if highest > form.limit:
                odd = odd or NonFinite()
                highest = odd.count(array[start : start + step], room[: piece.numel()], form)
            low, high = min(low, lowest), max(high, highest)
    return as_figures(low, high, odd, form)
