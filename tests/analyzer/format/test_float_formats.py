"""The limits of float formats against torch's and numpy's own, and against arithmetic done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.format.float_formats import FLOAT_FORMATS, float_format

KNOWN_TO_TORCH = sorted(name for name in FLOAT_FORMATS if hasattr(torch, name))
"""All of them from torch 2.7 on."""


@pytest.mark.parametrize("name", KNOWN_TO_TORCH)
def test_limits_equal_those_of_torch(name: str) -> None:
    # GIVEN torch's own description of the dtype
    theirs = torch.finfo(getattr(torch, name))
    # WHEN ours is derived from the widths
    ours = FLOAT_FORMATS[name]
    # THEN they agree exactly
    assert (ours.max, ours.smallest_normal) == (theirs.max, theirs.smallest_normal)


@pytest.mark.parametrize("name", KNOWN_TO_TORCH)
def test_epsilon_is_the_step_that_a_cast_keeps(name: str) -> None:
    # torch.finfo says 0.125 for float8_e5m2fnuz, which its own casts contradict, so the casts are asked
    step = FLOAT_FORMATS[name].epsilon
    stored = torch.tensor([1 + step, 1 + step / 2], dtype=torch.float64).to(getattr(torch, name)).double().tolist()
    assert stored[0] == 1 + step
    assert stored[1] in (1, 1 + step)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_subnormals_equal_those_of_numpy(name: str) -> None:
    assert FLOAT_FORMATS[name].smallest_subnormal == float(np.finfo(name).smallest_subnormal)


@pytest.mark.parametrize(("name", "smallest"), [("float8_e4m3fn", 2.0**-9), ("float8_e5m2", 2.0**-16),
                                                ("float8_e4m3fnuz", 2.0**-10), ("float8_e5m2fnuz", 2.0**-17),
                                                ("bfloat16", 2.0**-133)])  # fmt: skip
def test_subnormals_of_the_other_formats(name: str, smallest: float) -> None:
    # GIVEN the value that the formats' definitions give, WHEN torch stores it, THEN it survives and its half does not
    assert FLOAT_FORMATS[name].smallest_subnormal == smallest
    stored = torch.tensor([smallest, smallest / 4], dtype=torch.float64).to(getattr(torch, name)).double()
    assert stored.tolist() == [smallest, 0.0]


@pytest.mark.parametrize("name", sorted(set(FLOAT_FORMATS) - {"float8_e8m0fnu"}))
def test_has_inf_says_whether_the_format_can_store_one(name: str) -> None:
    stored = torch.tensor([math.inf], dtype=torch.float64).to(getattr(torch, name)).double()
    assert FLOAT_FORMATS[name].has_inf == bool(stored.isinf().item())


def test_a_complex_number_has_the_limits_of_its_parts() -> None:
    assert float_format("complex64") is FLOAT_FORMATS["float32"]


@pytest.mark.parametrize("dtype", ["int64", "bool", "quint8", "", None])
def test_what_is_no_float_has_no_format(dtype: str | None) -> None:
    assert float_format(dtype) is None


def test_bits_left_by_hand() -> None:
    # GIVEN float16, whose largest value is 65504 = 2**15 * 1.9990234375
    half = FLOAT_FORMATS["float16"]
    # THEN a quarter of it can double twice, what is twice as large is one bit past, and the ends are infinite
    assert half.bits_left(65504 / 4) == pytest.approx(2.0)
    assert half.bits_left(65504 * 2) == pytest.approx(-1.0)
    assert half.bits_left(0.0) == math.inf
    assert half.bits_left(math.inf) == -math.inf
    assert math.isnan(half.bits_left(math.nan))


def test_bits_left_of_the_smallest_float64_is_finite() -> None:
    assert FLOAT_FORMATS["float64"].bits_left(5e-324) == pytest.approx(1024 + 1074)


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("float16", 62700.0, "6.27e+04 is 95.7% of float16's 65504"),
        ("float16", 1.0, "1.00e+00 is less than 0.1% of float16's 65504"),
        ("float16", 0.0, "0.00e+00 is 0.0% of float16's 65504"),
        ("float8_e4m3fn", 448.0, "4.48e+02 is 100.0% of float8_e4m3fn's 448"),
        ("bfloat16", 1e38, "1.00e+38 is 29.5% of bfloat16's 3.38953e+38"),
        ("float16", 6.5504e7, "6.55e+07 is 1000 times float16's 65504"),
    ],
)
def test_a_value_against_the_limit_as_a_sentence(dtype: str, value: float, text: str) -> None:
    assert FLOAT_FORMATS[dtype].describe(value) == text


@given(st.floats(min_value=1e-300, max_value=1e300), st.sampled_from(sorted(FLOAT_FORMATS)))
def test_doubling_a_value_takes_one_bit(value: float, name: str) -> None:
    one = FLOAT_FORMATS[name]
    assert one.bits_left(value) - one.bits_left(2 * value) == pytest.approx(1.0, abs=1e-9)
