"""Arrow arrays made of buffers are what pa.array makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.format.arrow_arrays import bit_array, number_array, text_array

KINDS = ["int16", "int32", "int64", "uint8", "uint32", "float64"]


@given(st.lists(st.integers(0, 100)), st.sampled_from(KINDS), st.data())
def test_numbers_and_nulls(values: list[int], kind: str, data: Any) -> None:
    absent = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), dtype=bool)
    some = np.array(values, kind)
    for mask in (None, absent):
        array = number_array(some, mask)
        array.validate(full=True)
        assert array.equals(pa.array(some, mask=mask))


def test_numbers_that_do_not_lie_together() -> None:
    assert number_array(np.arange(10)[::3]).to_pylist() == [0, 3, 6, 9]


@given(st.lists(st.booleans()))
def test_bits(values: list[bool]) -> None:
    assert bit_array(np.array(values, dtype=bool)).to_pylist() == values


@given(st.lists(st.text()))
def test_texts(texts: list[str]) -> None:
    array = text_array(texts)
    array.validate(full=True)
    assert array.equals(pa.array(texts, pa.string()))


def test_a_lone_surrogate_is_no_text() -> None:
    with pytest.raises(UnicodeEncodeError):
        text_array(["\ud800"])
