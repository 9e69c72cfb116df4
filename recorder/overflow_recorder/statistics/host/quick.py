"""The way of nearly every tensor: plain, dense, finite, in the host's memory and no larger than a piece.

It is the general way of `host` and `extrema`, unrolled. A training step takes it a thousand times, and each call of a
function that it spares is a twentieth of the time of 4,096 elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from overflow_recorder.statistics.figures import ALL_FINITE, Figures
from overflow_recorder.statistics.formats import FORMATS, masked
from overflow_recorder.statistics.memory import ADDRESSES, collapse, scratch, storage_address
from overflow_recorder.statistics.quiet import PLAIN, function_mode_enabled

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from overflow_recorder.statistics.formats import Format

_new = tuple.__new__


class _Reader(NamedTuple):
    """How one dtype is read."""

    read: Callable[[int, int], Figures | None]
    width: int
    piece: int


def measure_quickly(tensor: torch.Tensor) -> Figures | None:
    """Extrema and counts of `tensor`; None where the general way must be taken.

    Raises:
        RuntimeError: The tensor only looks plain (functorch's tensors have torch.Tensor's class, and no memory).
    """
    if type(tensor) not in PLAIN or function_mode_enabled():
        return None
    reader = _READERS.get(tensor.dtype)
    if reader is None or not tensor.is_cpu:
        return None
    # Transposed or permuted, a dense tensor is read in the order of memory.
    if not tensor.is_contiguous() and collapse(tensor.shape, tensor.stride())[1:] != ((1,), 1):
        return None
    read, width, piece = reader
    size = tensor.numel()
    if not 0 < size <= piece:
        return None
    address, offset = storage_address(tensor), tensor.storage_offset()
    # Memory may have been given back while its tensors live on (FSDP's parameters between two uses).
    if not address or tensor.untyped_storage().nbytes() < (offset + size) * width:
        return None
    return read(size, address + offset * width)  # type: ignore[arg-type] # SymInt: fake tensors only, and not these


def _reader(form: Format) -> Callable[[int, int], Figures | None]:
    source, mask, limit, values, prepare = form.source, form.mask, form.limit, form.values, form.magnitudes
    all_finite = ALL_FINITE
    frombuffer, bitwise_and, is_masked = np.frombuffer, np.bitwise_and, form.magnitudes is masked

    def read(size: int, address: int) -> Figures | None:
        elements, room = frombuffer(ADDRESSES, source, size, address), scratch.typed[source][:size]
        magnitudes = bitwise_and(elements, mask, room) if is_masked else prepare(elements, room, form)
        highest = magnitudes.item(magnitudes.argmax())
        if highest > limit:
            return None
        low, high = values(magnitudes.item(magnitudes.argmin()), highest)
        return _new(Figures, (low, high, high) + all_finite)  # noqa: RUF005  Figures(...) or a star would cost more

    return read


_READERS = {
    dtype: _Reader(_reader(form), form.width, form.piece)
    for dtype, form in FORMATS.items()
    if form.magnitudes is masked
}
