"""What the figures of a tensor should be, by plain numpy in higher precision, and tensors to try."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from overflow_recorder.statistics import Figures

if TYPE_CHECKING:
    from overflow_recorder.statistics import Statistics

SMALLEST_NORMAL = {
    torch.float16: 2.0**-14,
    torch.bfloat16: 2.0**-126,
    torch.float32: 2.0**-126,
    torch.float64: 2.0**-1022,
    torch.float8_e4m3fn: 2.0**-6,
    torch.float8_e5m2: 2.0**-14,
    torch.float8_e4m3fnuz: 2.0**-7,
    torch.float8_e5m2fnuz: 2.0**-15,
    torch.complex32: 2.0**-14,
    torch.complex64: 2.0**-126,
    torch.complex128: 2.0**-1022,
}
"""By the definition of each format; what is not here has no subnormals."""

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FLOAT8S = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
FLOAT8S += [getattr(torch, name) for name in ("float8_e8m0fnu",) if hasattr(torch, name)]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
DTYPES = [*FLOATS, *FLOAT8S, *INTEGERS, torch.bool]
"""Every dtype whose elements torch converts to float64 exactly (64-bit integers: rounded once)."""


def expected(tensor: torch.Tensor, statistics: Statistics) -> Figures:
    """The figures of a strided tensor, computed the slow and obvious way."""
    numbers = tensor.detach().resolve_neg()
    numbers = numbers.abs() if numbers.is_complex() else numbers
    elements = numbers.to(torch.float64).numpy().ravel()
    magnitudes = np.abs(elements)
    finite = magnitudes[np.isfinite(magnitudes)]
    counts = [int(np.count_nonzero(of)) for of in (np.isnan(elements), elements == np.inf, elements == -np.inf)]
    figures = Figures(
        float(magnitudes.min()) if magnitudes.size else None,
        float(magnitudes.max()) if magnitudes.size else None,
        float(finite.max()) if finite.size else None,
        *counts,
    )
    if statistics == "extrema":
        return figures
    wide = finite.astype(np.longdouble)  # its squares stay in range
    smallest = SMALLEST_NORMAL.get(tensor.dtype, 0.0)
    return figures._replace(
        zero_count=int(np.count_nonzero(finite == 0)),
        subnormal_count=int(np.count_nonzero((finite > 0) & (finite < smallest))),
        abs_mean=float(wide.mean()) if finite.size else None,
        rms=float(np.sqrt((wide * wide).mean())) if finite.size else None,
    )


def assert_same(figures: Figures, wanted: Figures) -> None:
    """Equal, nan being nan; the means but for the rounding of float64 sums."""
    for name, value in wanted._asdict().items():
        got = getattr(figures, name)
        if isinstance(value, float) and math.isnan(value):
            assert isinstance(got, float)
            assert math.isnan(got), name
        elif name in {"abs_mean", "rms"} and value is not None:
            assert got == pytest.approx(value, rel=1e-12, abs=0), name
        else:
            assert got == value, name
        assert type(got) is type(value), name


def from_bits(bits: list[int], dtype: torch.dtype) -> torch.Tensor:
    """A one-dimensional tensor whose elements have exactly these bits."""
    if dtype == torch.bool:
        return torch.tensor([bool(bit & 1) for bit in bits], dtype=torch.bool)
    array = np.array(bits, np.dtype(f"u{dtype.itemsize}"))
    return torch.from_numpy(array.view(f"i{dtype.itemsize}")).view(dtype)


def _special_bits(dtype: torch.dtype) -> list[int]:
    """Bits of nan, infinities, zeros, subnormals and the largest numbers, of whatever float the dtype is."""
    width = 8 * dtype.itemsize
    sign = 1 << (width - 1)
    mantissa = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}.get(dtype, 2)
    infinity = (sign - 1) >> mantissa << mantissa
    magnitudes = [0, 1, 3, (1 << mantissa) - 1, 1 << mantissa, infinity - 1, infinity, infinity + 1, sign - 1]
    return [magnitude | (sign * negative) for magnitude in magnitudes for negative in (0, 1)]


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[torch.dtype] = DTYPES) -> torch.Tensor:
    """Tensors of any dtype, shape and stride, with any mixture of special values."""
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    any_bits = st.one_of(st.sampled_from(_special_bits(dtype)), st.integers(0, 2 ** (8 * dtype.itemsize) - 1))
    palette = draw(st.lists(any_bits, min_size=1, max_size=8))  # few kinds of element, so that all-nan tensors occur
    size = math.prod(shape)
    bits = draw(st.lists(st.sampled_from(palette), min_size=size, max_size=size))
    return draw(views(from_bits(bits, dtype).reshape(shape)))


def views(tensor: torch.Tensor) -> st.SearchStrategy[torch.Tensor]:
    """The tensor seen in other orders, in part, or repeated."""
    return st.lists(st.sampled_from(_VIEWS), max_size=3).map(lambda chosen: _apply(tensor, chosen))


def _apply(tensor: torch.Tensor, chosen: list[Any]) -> torch.Tensor:
    for view in chosen:
        tensor = view(tensor)
    return tensor


_VIEWS = [
    lambda tensor: tensor.permute(tuple(reversed(range(tensor.dim())))),
    lambda tensor: tensor.transpose(0, 1) if tensor.dim() > 1 else tensor,
    lambda tensor: tensor[1:] if tensor.dim() else tensor,
    lambda tensor: tensor[..., ::2] if tensor.dim() else tensor,
    lambda tensor: tensor[..., :3] if tensor.dim() else tensor,
    lambda tensor: tensor.unsqueeze(0).expand(3, *tensor.shape),
    lambda tensor: tensor.unsqueeze(-1).expand(*tensor.shape, 2),
    lambda tensor: tensor.unfold(0, 2, 1) if tensor.dim() and tensor.shape[0] > 1 else tensor,
]
