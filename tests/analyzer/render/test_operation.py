"""The lines that name an operation, to the letter."""

from __future__ import annotations

import dataclasses

import pytest

from overflow_analyzer.format.origin import Place
from overflow_analyzer.render.operation import describe_place, operation_lines
from tests.analyzer.format.test_origin import LINE, OPERATION, ORIGIN


def test_the_operation_its_operands_and_its_result() -> None:
    assert operation_lines(ORIGIN) == (
        "torch.matmul (aten.bmm), models/attention.py:41 in Attention.forward: scores = q @ k.transpose(-1, -2)",
        "operands   float16 [8, 6, 64]  abs max 4.10e+02",
        "           float16 [8, 64, 6]  abs max 3.90e+02  weight of key",
        (
            "result     float16 [8, 6, 6]  12 +inf, 3 -inf of 288; in float32 the same operation gives at most "
            "1.60e+05, 244.3% of float16's 65504"
        ),
        "where      15 of 288 elements, all in [5, :, :], the first [5, 0, 1]",
        "detected   input[0] of layers.3.attention.out: all of [5, :, :], 384 of 3072 elements",
    )


def test_where_the_code_is_torchs_own_the_line_that_called_the_module() -> None:
    operation = dataclasses.replace(OPERATION, source=None, module_name="fc", module_class="Linear")
    assert operation_lines(dataclasses.replace(ORIGIN, operation=operation))[0] == (
        "torch.matmul (aten.bmm) in fc (Linear), called at train.py:7 in <module>: model(x)"
    )


def test_the_calls_between_the_module_and_the_line() -> None:
    operation = dataclasses.replace(OPERATION, calls=(LINE, dataclasses.replace(LINE, line=50, code="")))
    assert operation_lines(dataclasses.replace(ORIGIN, operation=operation))[1:3] == (
        "  called by models/attention.py:50 in Attention.forward",
        "  called by models/attention.py:41 in Attention.forward: scores = q @ k.transpose(-1, -2)",
    )


def test_why_none_is_named_and_where_it_lies() -> None:
    origin = dataclasses.replace(
        ORIGIN, operation=None, reason="it came with input[0]", place=Place(1, 12, (2, 5), (2, 5), whole=True)
    )
    assert operation_lines(origin) == (
        "no operation is named: it came with input[0]",
        "detected   input[0] of layers.3.attention.out: 1 element of 12, [2, 5]",
    )


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place(1, 1, (), (), whole=True), "the one element"),
        (Place(6, 6, (0, 0), (None, None), whole=True), "every element"),
        (Place(3, 6, (1, 0), (1, None), whole=True), "all of [1, :], 3 of 6 elements"),
        (Place(2, 6, (0, 1), (None, None), whole=False), "2 of 6 elements, the first [0, 1]"),
        (
            Place(3, 4030, (5, 0, 403), (5, None, 403), whole=False),
            "3 of 4030 elements, all in [5, :, 403], the first [5, 0, 403]",
        ),
    ],
)
def test_where_in_a_tensor(place: Place, text: str) -> None:
    assert describe_place(place) == text


def test_that_other_elements_may_have_been_hit() -> None:
    assert operation_lines(dataclasses.replace(ORIGIN, draws=True))[-1] == (
        "random     the second run drew other random numbers: other elements may have been hit"
    )
