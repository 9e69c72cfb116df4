"""A tensor's memory as numpy sees it, in pieces that fit a cache.

Reading memory instead of calling torch operations costs a fraction of their time for a small tensor, and is invisible:
no dispatch, so no mode, autocast, autograd, profiler or version counter ever notices.
"""

from __future__ import annotations

import ctypes
import threading
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from overflow_recorder.statistics.formats import COMPLEX, FLOAT4, FLOAT4_DTYPE, FORMATS, PIECE_BYTES, Array, Format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# A buffer over every address there is, so that an array is made from an address alone. It owns nothing, and an array
# over it keeps nothing alive: arrays must not outlive the call in which the tensor is held.
ADDRESSES: Any = (ctypes.c_char * (2**63 - 1)).from_address(0)

# The first byte of a tensor's storage. torch's own name for it is private; the public one would turn a lazy clone,
# which shares memory until it is written to, into a real one.
storage_address: Callable[[torch.Tensor], int] = getattr(
    torch._C, "_data_address", lambda tensor: tensor.untyped_storage().data_ptr()
)


class Scratch(threading.local):
    """A thread's own working memory, reused for every tensor: 320 KiB, and more where a tensor needs it."""

    def __init__(self) -> None:
        magnitudes = np.empty(PIECE_BYTES, np.uint8)
        self.typed = {
            np.dtype(f"{kind}{width}"): magnitudes.view(f"{kind}{width}") for kind in "iu" for width in (1, 2, 4, 8)
        }
        self.float64 = np.empty(1 << 13)
        self._staging: Array | None = None
        self._large: Array | None = None

    def staging(self) -> Array:
        """256 KiB, into which strided elements are copied."""
        if self._staging is None:
            self._staging = np.empty(PIECE_BYTES, np.uint8)
        return self._staging

    def large(self) -> Array:
        """2 MiB, for the magnitudes of a piece that several threads read."""
        if self._large is None:
            self._large = np.empty(1 << 21, np.uint8)
        return self._large


scratch = Scratch()


@lru_cache(maxsize=1024)  # the same few shapes come in every training step
def collapse(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Put dimensions into the order of memory and merge those that follow each other.

    Returns:
        Sizes and strides in elements, outermost first, and how often each element occurs (expanded dimensions, whose
        stride is 0, are left out). A dense tensor, transposed or not, becomes one dimension of stride 1.
    """
    repeats = 1
    dimensions: list[tuple[int, int]] = []
    for stride, size in sorted(zip(strides, shape, strict=True), reverse=True):
        if stride == 0:
            repeats *= size
        elif dimensions and dimensions[-1][1] == stride * size:
            dimensions[-1] = (dimensions[-1][0] * size, stride)
        elif size != 1:
            dimensions.append((size, stride))
    sizes, steps = zip(*dimensions, strict=True) if dimensions else ((1,), (1,))
    return sizes, steps, repeats


def elements(tensor: torch.Tensor, source: np.dtype[Any]) -> tuple[Array, int]:
    """View the memory of a strided host tensor with at least one element; the array must not outlive the tensor.

    Returns:
        The distinct elements, in the order of memory and with as few dimensions as possible, and their repeats.

    Raises:
        MemoryError: The tensor's memory has been given back.
    """
    sizes, strides, repeats = collapse(tensor.shape, tensor.stride())
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    address, offset, width = storage_address(tensor), tensor.storage_offset(), source.itemsize
    if not address or tensor.untyped_storage().nbytes() < (offset + span) * width:
        raise MemoryError("the tensor's memory has been given back")
    stored = np.frombuffer(ADDRESSES, source, span, address + offset * width)
    if strides == (1,):
        return stored, repeats
    return np.ndarray(sizes, source, stored, 0, tuple(width * stride for stride in strides)), repeats


def pieces(array: Array) -> Iterator[Array]:
    """Yield the elements as contiguous one-dimensional arrays of at most `PIECE_BYTES`; strided ones are copied."""
    step = PIECE_BYTES // array.itemsize
    if array.ndim == 1 and array.strides[0] == array.itemsize:
        for start in range(0, array.size, step):
            yield array[start : start + step]
        return
    room = scratch.staging().view(array.dtype)
    for block in _blocks(array, step):
        copy = room[: block.size]
        np.copyto(copy.reshape(block.shape), block)
        yield copy


def _blocks(array: Array, limit: int) -> Iterator[Array]:
    """Cut an array of any dimensions into parts of at most `limit` elements, along its outer dimensions."""
    rows = limit // (array.size // len(array))
    if rows:
        for start in range(0, len(array), rows):
            yield array[start : start + rows]
    else:
        for part in array:
            yield from _blocks(part, limit)


def packed(tensor: torch.Tensor) -> tuple[Callable[[], Iterator[Array]], Format, int]:
    """Prepare to read a strided host tensor whose elements are not one number each: complex ones, and packed float4.

    Call this, and what it returns, under `quiet`.

    Returns:
        What yields the elements (of complex ones the magnitudes), each time anew; the format of what it yields; how
        often each element occurs.

    Raises:
        KeyError: The dtype is unknown.
        MemoryError: The tensor's memory has been given back.
    """
    if tensor.dtype == FLOAT4_DTYPE:
        array, repeats = elements(tensor, FLOAT4.source)
        return partial(_float4_pieces, array), FLOAT4, repeats
    source, part = COMPLEX[tensor.dtype]
    array, repeats = elements(tensor, source)
    return partial(_magnitude_pieces, array, tensor.dtype), FORMATS[part], repeats


def _magnitude_pieces(array: Array, dtype: torch.dtype) -> Iterator[Array]:
    """Yield the bits of torch's own abs() of each piece."""
    for piece in pieces(array):
        magnitudes: Array = torch.from_numpy(piece).view(dtype).abs().numpy()
        yield magnitudes.view(f"i{magnitudes.itemsize}")


def _float4_pieces(array: Array) -> Iterator[Array]:
    """Yield both float4 of each byte, a byte each."""
    for piece in pieces(array):
        yield piece & 0xF
        yield (piece >> 4) & 0xF
