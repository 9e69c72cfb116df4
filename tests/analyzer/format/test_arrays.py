"""Columns as numpy arrays are what Arrow says they are, however they lie in memory; made ones are what it makes."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.format.arrays import bit_array, coded, number_array, numbers, text_array

ROOT = Path(__file__).resolve().parents[3]
FIGURES = st.none() | st.floats()
NAMES = st.none() | st.sampled_from(["a", "b", "", "é"])


def in_chunks(values: list[object], type_: pa.DataType, cuts: set[int]) -> pa.Table:
    """A table of one column whose chunks are slices of one array, which begin at the cuts."""
    whole = pa.array(values, type_)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(values)), len(values)]
    chunks = [whole[start:stop] for start, stop in itertools.pairwise(bounds)]
    return pa.table({"column": pa.chunked_array(chunks, type_)})


@given(values=st.lists(FIGURES), cuts=st.sets(st.integers(1, 20)))
def test_numbers_are_those_of_arrow_and_nulls_are_filled(values: list[float | None], cuts: set[int]) -> None:
    table = in_chunks(list(values), pa.float64(), cuts)
    found = numbers(table, "column", -1.0)
    expected = [-1.0 if value is None else value for value in table["column"].to_pylist()]
    np.testing.assert_array_equal(found, np.array(expected, np.float64))


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1)), cuts=st.sets(st.integers(1, 20)))
def test_integers_without_nulls_keep_their_type_and_every_bit(values: list[int], cuts: set[int]) -> None:
    found = numbers(in_chunks(list(values), pa.int64(), cuts), "column")
    assert found.dtype == np.int64
    assert found.tolist() == values


def test_a_null_integer_is_nan_unless_something_else_is_asked_for() -> None:
    table = in_chunks([1, None], pa.int64(), set())
    np.testing.assert_array_equal(numbers(table, "column"), [1.0, np.nan])
    assert numbers(table, "column", -1).tolist() == [1, -1]


@given(values=st.lists(NAMES), cuts=st.sets(st.integers(1, 20)))
def test_codes_stand_for_the_names_and_minus_one_for_none(values: list[str | None], cuts: set[int]) -> None:
    codes, names = coded(in_chunks(list(values), pa.dictionary(pa.int32(), pa.string()), cuts), "column")
    assert [None if code < 0 else names[code] for code in codes.tolist()] == values


@pytest.mark.parametrize("type_", [pa.float64(), pa.int32(), pa.uint8()])
def test_a_column_without_chunks_is_empty_and_of_its_type(type_: pa.DataType) -> None:
    found = numbers(pa.table({"column": pa.chunked_array([], type_)}), "column")
    assert found.tolist() == []
    assert found.dtype == type_.to_pandas_dtype()


def test_no_command_that_reads_imports_pandas() -> None:
    # GIVEN a pandas that Arrow's conversions would import: half a second
    assert importlib.util.find_spec("pandas") is not None
    script = """
import sys
from overflow_analyzer.cli import main
a, b = "fixtures/diff-weight-perturbed/a.parquet", "fixtures/diff-weight-perturbed/b.parquet"
for command in (["report", a], ["info", a], ["top", a], ["batch", a, "1"], ["diff", a, b], ["watch", a, "--once"]):
    main(command)
    assert "pandas" not in sys.modules, command
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
