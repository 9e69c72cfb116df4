"""The figures of plain host tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given

from overflow_recorder.statistics import Figures, measure
from tests.recorder.statistics_oracle import (
    COMPLEX,
    DTYPES,
    FLOAT8S,
    FLOATS,
    INTEGERS,
    assert_same,
    expected,
    from_bits,
    tensors,
)

if TYPE_CHECKING:
    from overflow_recorder.statistics import Statistics

STATISTICS: list[Statistics] = ["extrema", "full"]


@pytest.mark.parametrize("statistics", STATISTICS)
@given(tensor=tensors())
def test_any_tensor_has_the_figures_of_a_plain_computation(tensor: torch.Tensor, statistics: Statistics) -> None:
    assert_same(measure(tensor, statistics), expected(tensor, statistics))


@given(tensor=tensors(FLOATS))
def test_extrema_are_what_torch_itself_says(tensor: torch.Tensor) -> None:
    figures = measure(tensor, "extrema")
    if tensor.numel():
        assert figures.abs_min == pytest.approx(tensor.abs().min().item(), rel=0, abs=0, nan_ok=True)
        assert figures.abs_max == pytest.approx(tensor.abs().max().item(), rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize == 1], ids=str)
def test_each_pattern_of_a_one_byte_dtype(dtype: torch.dtype) -> None:
    # GIVEN every pattern there is, alone, and all of them together
    patterns = range(2 if dtype == torch.bool else 256)
    for pattern in patterns:
        tensor = from_bits([pattern], dtype)
        # THEN its figures are those of its value in float64
        assert_same(measure(tensor, "full"), expected(tensor, "full"))
    together = from_bits(list(patterns), dtype)
    assert_same(measure(together, "full"), expected(together, "full"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_each_pattern_of_a_two_byte_float(dtype: torch.dtype) -> None:
    # GIVEN rows of 64 patterns, so that each is an extremum of few
    tensor = from_bits(list(range(1 << 16)), dtype).reshape(-1, 64)
    for row in tensor:
        assert_same(measure(row, "full"), expected(row, "full"))


def test_nan_beside_finite_elements() -> None:
    figures = measure(torch.tensor([math.nan, 5, -7]), "extrema")
    assert math.isnan(figures.abs_min or 0)
    assert math.isnan(figures.abs_max or 0)
    assert figures[2:6] == (7.0, 1, 0, 0)


def test_infinities_are_counted_by_sign() -> None:
    figures = measure(torch.tensor([math.inf, -math.inf, -math.inf, 0.5], dtype=torch.float16), "extrema")
    assert figures == Figures(0.5, math.inf, 0.5, 0, 1, 2)


def test_no_finite_element() -> None:
    assert measure(torch.tensor([math.inf, math.inf]), "full") == Figures(
        math.inf, math.inf, None, 0, 2, 0, zero_count=0, subnormal_count=0, abs_mean=None, rms=None
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_the_lowest_integer_has_its_true_magnitude(dtype: torch.dtype) -> None:
    lowest = torch.iinfo(dtype).min
    assert measure(torch.tensor([lowest, 3], dtype=dtype), "extrema") == Figures(3.0, -lowest, -lowest, 0, 0, 0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_the_highest_unsigned_integer(dtype: torch.dtype) -> None:
    highest = 2 ** (8 * dtype.itemsize) - 1
    figures = measure(from_bits([highest, 1], dtype), "extrema")
    assert figures == Figures(1.0, float(highest), float(highest), 0, 0, 0)


def test_bool_is_zero_and_one() -> None:
    assert measure(torch.tensor([True, False, True]), "full")[:8] == (0.0, 1.0, 1.0, 0, 0, 0, 1, 0)


@pytest.mark.parametrize("dtype", [*DTYPES, *COMPLEX], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
def test_an_empty_tensor_has_no_extrema_and_nothing_that_is_not_finite(dtype: torch.dtype) -> None:
    empty = torch.empty((3, 0), dtype=dtype)
    assert measure(empty, "extrema") == Figures(None, None, None, 0, 0, 0)
    assert measure(empty, "full") == Figures(None, None, None, 0, 0, 0, 0, 0, None, None)


def test_a_scalar_tensor() -> None:
    assert measure(torch.tensor(-2.5), "full") == Figures(2.5, 2.5, 2.5, 0, 0, 0, 0, 0, 2.5, 2.5)


def test_extrema_leave_the_full_statistics_unknown() -> None:
    assert measure(torch.ones(3), "extrema")[6:10] == (None, None, None, None)


# --- full statistics beyond the range of float64's squares


@pytest.mark.parametrize("magnitude", [5e-324, 1e-310, 1e-200, 1e200, 1.7976931348623157e308])
def test_means_of_extreme_float64_numbers(magnitude: float) -> None:
    figures = measure(torch.full((1000,), -magnitude, dtype=torch.float64), "full")
    assert figures.abs_mean == pytest.approx(magnitude, rel=1e-12, abs=0)
    assert figures.rms == pytest.approx(magnitude, rel=1e-12, abs=0)


def test_means_leave_out_what_is_not_finite() -> None:
    figures = measure(torch.tensor([3.0, math.nan, -4.0, math.inf]), "full")
    assert (figures.abs_mean, figures.rms) == (3.5, math.sqrt(12.5))


# --- layouts of memory


def test_an_expanded_tensor_counts_each_element_of_the_view() -> None:
    tensor = torch.tensor([[math.nan], [0.0]]).expand(2, 1000)
    figures = measure(tensor, "full")
    assert (figures.nan_count, figures.zero_count) == (1000, 1000)


def test_a_slice_reads_nothing_beside_itself() -> None:
    matrix = torch.full((50, 50), math.nan)
    matrix[10:20, 30:40] = 1.5
    assert measure(matrix[10:20, 30:40], "extrema") == Figures(1.5, 1.5, 1.5, 0, 0, 0)


@pytest.mark.parametrize("size", [1000, 2_000_000])
def test_memory_that_is_not_aligned(size: int) -> None:
    # GIVEN floats that begin at an odd address, as in a file read into memory
    array = np.linspace(-9, 7, size, dtype=np.float32)
    file = bytearray(b"\0" + array.tobytes())
    tensor = torch.frombuffer(file, dtype=torch.float32, offset=1)
    assert tensor.data_ptr() % 4
    assert_same(measure(tensor, "full"), expected(torch.from_numpy(array), "full"))


def test_a_negated_view_has_its_infinities_negated() -> None:
    # GIVEN a view with the neg bit: memory holds the opposite sign
    tensor = torch.tensor([complex(1, math.inf), complex(1, math.inf), complex(1, -math.inf)]).conj().imag
    assert tensor.is_neg()
    assert measure(tensor, "extrema") == Figures(math.inf, math.inf, None, 0, 1, 2)


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
def test_complex_numbers_by_magnitude(dtype: torch.dtype) -> None:
    numbers = [3 + 4j, -6 + 8j, complex(math.inf, 1), complex(math.inf, math.nan), complex(math.nan, 1), 0j]
    tensor = torch.tensor(numbers, dtype=torch.complex128).to(dtype)
    for view in (tensor, tensor.conj(), tensor[::2], tensor.expand(4, 6)):
        assert_same(measure(view, "full"), expected(view, "full"))
    assert measure(tensor, "extrema").finite_abs_max == 10.0


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_two_float4_in_a_byte() -> None:
    # GIVEN 0.5 and -6 in one byte, 0 and -0 in the other
    pairs = torch.tensor([0b1111_0001, 0b1000_0000], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    # THEN four values are measured; 0.5 is the format's subnormal
    mean, rms = 6.5 / 4, math.sqrt(36.25 / 4)
    assert measure(pairs, "full") == Figures(0.0, 6.0, 6.0, 0, 0, 0, 2, 1, mean, rms)


def test_the_lists_of_dtypes_miss_none() -> None:
    known = {*DTYPES, *COMPLEX, getattr(torch, "float4_e2m1fn_x2", None)}
    all_dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    unknown = {str(dtype).removeprefix("torch.") for dtype in all_dtypes - known}
    # Quantized dtypes are dequantized; the rest are shells without operations or values.
    shells = {f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)} | {"bit"}
    assert {name for name in unknown if not name.startswith(("q", "bits"))} <= shells
    assert set(FLOATS) | set(FLOAT8S) | set(INTEGERS) < known
