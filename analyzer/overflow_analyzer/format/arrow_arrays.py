"""Arrow arrays made of their buffers.

``pa.array`` imports pandas where that is installed: half a second and tens of MiB, in the middle of a training
or before an answer. The way back is ``columns.numbers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt


def number_array(values: npt.NDArray[Any], absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers as an Arrow array, which keeps their memory alive.

    Args:
        values: One dimension of integers or floats.
        absent: Which of them are null; None where none is.
    """
    present = None if absent is None else _bits(~absent)
    buffers = [present, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def bit_array(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Return bools as an Arrow array."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, _bits(values)])


def text_array(texts: Sequence[str]) -> pa.Array:
    """Return texts as an Arrow array of type string."""
    encoded = [text.encode() for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(one) for one in encoded], out=offsets[1:])
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )


def _bits(values: npt.NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
