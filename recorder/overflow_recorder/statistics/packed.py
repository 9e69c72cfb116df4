"""Elements that are not one number each: complex ones, read by magnitude, and two float4 in a byte."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from overflow_recorder.statistics.formats import FLOAT4, FORMATS, Array, Format
from overflow_recorder.statistics.memory import elements, pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COMPLEX: dict[torch.dtype, tuple[np.dtype[Any], torch.dtype]] = {
    torch.complex32: (np.dtype("i4"), torch.float16),
    torch.complex64: (np.dtype("c8"), torch.float32),
    torch.complex128: (np.dtype("c16"), torch.float64),
}
"""How a complex element is read from memory, and the dtype of its magnitude."""

FLOAT4_DTYPE: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)


def packed(tensor: torch.Tensor) -> tuple[Callable[[], Iterator[Array]], Format, int]:
    """Prepare to read a strided host tensor; call this, and what it returns, under `quiet`.

    Returns:
        What yields the elements, each time anew; the format of what it yields; how often each element occurs.

    Raises:
        KeyError: The dtype is unknown.
        MemoryError: The tensor's memory has been given back.
    """
    if tensor.dtype == FLOAT4_DTYPE:
        array, repeats = elements(tensor, FLOAT4.source)
        return partial(float4_pieces, array), FLOAT4, repeats
    source, part = COMPLEX[tensor.dtype]
    array, repeats = elements(tensor, source)
    return partial(magnitude_pieces, array, tensor.dtype), FORMATS[part], repeats


def magnitude_pieces(array: Array, dtype: torch.dtype) -> Iterator[Array]:
    """Yield the bits of torch's own abs() of each piece; call it under `quiet`."""
    for piece in pieces(array):
        magnitudes: Array = torch.from_numpy(piece).view(dtype).abs().numpy()
        yield magnitudes.view(f"i{magnitudes.itemsize}")


def float4_pieces(array: Array) -> Iterator[Array]:
    """Yield both float4 of each byte, a byte each."""
    for piece in pieces(array):
        yield piece & 0xF
        yield (piece >> 4) & 0xF
