"""Every type: what a command line makes of texts."""

# ruff: noqa: UP007, UP045, PYI061 - every way of spelling a type, older ones too

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import json
import math
import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, NamedTuple, Optional, Protocol, TypedDict, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorder.argument_kinds import (
    JSON,
    Colour,
    Inner,
    Level,
    UserId,
    assert_same,
    from_line,
    parser_of,
)

TEXTS: list[tuple[Any, str, Any]] = [
    (int, "3", 3),
    (int, "-3", -3),
    (float, "3", 3.0),
    (float, "1e-4", 1e-4),
    (float, "inf", float("inf")),
    (complex, "1+2j", 1 + 2j),
    (str, "3", "3"),
    (str, "", ""),
    (bytes, "é", b"\xc3\xa9"),
    (bytearray, "a", bytearray(b"a")),
    (Any, "3", "3"),
    (object, "3", "3"),
    (bool, "YES", True),
    (bool, "n", False),
    (Path, "a/b", Path("a/b")),
    (PurePosixPath, "a", PurePosixPath("a")),
    (os.PathLike[str], "a", Path("a")),
    (Colour, "red", Colour.RED),
    (Colour, "RED", Colour.RED),
    (Colour, "AZURE", Colour.BLUE),
    (Level, "2", Level.HIGH),
    (Level, "LOW", Level.LOW),
    (Literal["a", 1, None, True], "a", "a"),
    (Literal["a", 1, None, True], "1", 1),
    (Literal["a", 1, None, True], "None", None),
    (Literal["a", 1, None, True], "True", True),
    (Literal[Colour.RED], "red", Colour.RED),
    (Literal[Colour.RED], "RED", Colour.RED),
    (dict, '{"a": 1}', {"a": 1}),
    (dict | None, '{"a": 1}', {"a": 1}),
    (dict | None, "null", None),
    (dict[str, float], '{"a": 1}', {"a": 1.0}),
    (dict[int, Any], '{"1": [null]}', {1: [None]}),
    (Mapping[str, list[int]], '{"a": [1]}', {"a": [1]}),
    (Optional[int], "3", 3),
    (Optional[int], "None", None),
    (Optional[str], "None", "None"),
    (Optional[bool], "no", False),
    (Union[int, str], "auto", "auto"),
    (Union[int, str], "3", 3),
    (Union[str, int], "3", 3),
    (int | float, "3", 3),
    (float | int, "3", 3),
    (float | int, "3.5", 3.5),
    (bool | int, "1", 1),
    (bool | int, "true", True),
    (bool | str, "maybe", "maybe"),
    (Colour | str, "red", Colour.RED),
    (Colour | str, "green", "green"),
    (str | dict, "{broken", "{broken"),
    (str | dict, '{"a": 1}', {"a": 1}),
    (Annotated[int, "unit"], "3", 3),
    (Annotated[Optional[int], {"help": "x"}], "3", 3),
    (Final[int], "3", 3),
    (UserId, "3", 3),
    (decimal.Decimal, "1.10", decimal.Decimal("1.10")),
    (fractions.Fraction, "1/3", fractions.Fraction(1, 3)),
    (uuid.UUID, "12345678123456781234567812345678", uuid.UUID(int=0x12345678123456781234567812345678)),
    (dt.date, "2024-02-29", dt.date(2024, 2, 29)),
    (Inner, '{"size": 1, "children": [{"size": 2}]}', Inner(1, [Inner(2)])),
]


@pytest.mark.parametrize(("hint", "text", "expected"), TEXTS)
def test_one_text(hint: Any, text: str, expected: object) -> None:
    assert_same(from_line(hint, f"--x={text}"), expected)


SEVERAL: list[tuple[Any, list[str], Any]] = [
    (list[int], ["1", "2"], [1, 2]),
    (list[int], [], []),
    (list[int], ["-1"], [-1]),
    (list, ["1", "a"], ["1", "a"]),
    (list[Any], ["1"], ["1"]),
    (list[bool], ["False", "yes"], [False, True]),
    (list[Colour], ["red", "blue"], [Colour.RED, Colour.BLUE]),
    (list[Literal[1, "a"]], ["1", "a"], [1, "a"]),
    (list[int | str], ["1", "a"], [1, "a"]),
    (list[list[int]], ["[1, 2]", "[]"], [[1, 2], []]),
    (list[dict[str, int]], ['{"a": 1}'], [{"a": 1}]),
    (list[Optional[int]], ["1", "None"], [1, None]),
    (Sequence[int], ["1"], [1]),
    (set[int], ["1", "1"], {1}),
    (frozenset[str], ["a"], frozenset({"a"})),
    (tuple, ["1", "a"], ("1", "a")),
    (tuple[int, ...], ["1", "2", "3"], (1, 2, 3)),
    (tuple[int, ...], [], ()),
    (tuple[int, str], ["1", "2"], (1, "2")),
    (tuple[()], [], ()),
    (Optional[list[int]], ["1"], [1]),
    (Optional[list[int]], ["None"], None),
    (Optional[list[str]], ["None"], ["None"]),
    (Optional[tuple[int, int]], ["1", "2"], (1, 2)),
    (str | list[str], ["a"], "a"),
    (str | list[str], ["a", "b"], ["a", "b"]),
    (None | str | list[str], ["a", "b"], ["a", "b"]),
    (bool | list[int], ["1", "2"], [1, 2]),
    (bool | list[int], [], True),
]


@pytest.mark.parametrize(("hint", "texts", "expected"), SEVERAL)
def test_several_texts(hint: Any, texts: list[str], expected: object) -> None:
    assert_same(from_line(hint, "--x", *texts), expected)


WRONG_TEXTS: list[tuple[Any, list[str], str]] = [
    (int, ["3.5"], "expected int, got '3.5'"),
    (float, ["x"], "expected float"),
    (bool, ["maybe"], "yes/no"),
    (Colour, ["green"], "one of red, blue"),
    (Literal["a", 1], ["b"], "one of a, 1"),
    (dict | None, ['{"a": 1'], "not valid JSON"),
    (dict, ["[1]"], "another kind"),
    (dict[str, int], ['{"a": "b"}'], "key 'a': expected int"),
    (dict[int, int], ['{"a": 1}'], "key 'a': expected int"),
    (list[int], ["1", "x"], "element 1: expected int"),
    (tuple[int, str], ["x", "1"], "element 0: expected int"),
    (Optional[int], ["x"], "expected int, got 'x'"),
    (int | bool, ["x"], "expected int or bool, got 'x'"),
    (decimal.Decimal, ["x"], "expected Decimal"),
    (dt.date, ["yesterday"], "expected date"),
    (Inner, ['{"size": 1, "sise": 2}'], "no field 'sise' .did you mean size"),
    (Inner, ["{}"], "Inner.size: missing"),
]


@pytest.mark.parametrize(("hint", "texts", "message"), WRONG_TEXTS)
def test_a_wrong_text_is_a_usage_error_that_names_class_and_field(
    hint: Any, texts: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        from_line(hint, "--x", *texts)

    assert stopped.value.code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "Args.x: " in error
    assert re.search(message, error)


def test_a_long_wrong_text_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        from_line(int, "--x", "a" * 1000)

    assert len(capsys.readouterr().err) < 300


class _Callable(Protocol):
    def __call__(self) -> int: ...


class _Typed(TypedDict):
    a: int


class _Named(NamedTuple):
    a: int


@pytest.mark.parametrize(
    "hint", [Callable[[], int], type[int], _Callable, _Typed, _Named, collections.deque, list[Callable[[], int]], range]
)
def test_a_type_that_no_text_makes_is_refused_when_the_parser_is_made(hint: Any) -> None:
    with pytest.raises(TypeError, match=r"^Args\.x: values of type .* cannot be made from text"):
        parser_of(hint)


@given(st.one_of(st.integers(), st.floats(allow_nan=False), st.complex_numbers(allow_nan=False)))
def test_a_number_comes_back_from_its_text(number: complex) -> None:
    assert_same(from_line(type(number), f"--x={number!r}"), number)


@pytest.mark.parametrize(
    ("hint", "text", "expected"),
    [
        (float, "-Infinity", -math.inf),
        (float, "-INF", -math.inf),
        (float, "-.5", -0.5),
        (complex, "-1+2j", -1 + 2j),
        (complex, "-1.5e-3-2e+4j", -1.5e-3 - 2e4j),
        (complex, "-2j", complex(0, -2)),
        (complex, "-j", complex(0, -1)),
        (complex, "-1+j", complex(-1, 1)),
        (complex, "-inf-infj", complex("-inf-infj")),
        (fractions.Fraction, "-1/3", fractions.Fraction(-1, 3)),
        (decimal.Decimal, "-1.10", decimal.Decimal("-1.10")),
        (list[complex], "-1+2j", [-1 + 2j]),
    ],
)
def test_a_value_that_begins_with_a_minus(hint: Any, text: str, expected: object) -> None:
    assert_same(from_line(hint, "--x", text), expected)


def test_a_minus_is_no_number_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("-x", "-jj", "-1+2", "-1/j"):
        with pytest.raises(SystemExit):
            from_line(complex, "--x", text)
    assert capsys.readouterr().err.count("argument --x: expected one argument") == 4


@given(st.one_of(st.integers(), st.floats(allow_nan=False)))
def test_a_negative_number_is_a_value_and_no_option(number: float) -> None:
    assert_same(from_line(type(number), "--x", repr(number)), number)


@given(st.text())
def test_a_text_comes_back_as_it_is(text: str) -> None:
    assert from_line(str, f"--x={text}") == text


@given(st.dictionaries(st.text(), JSON))
def test_a_dict_comes_back_from_its_json(content: dict[str, Any]) -> None:
    assert from_line(dict, f"--x={json.dumps(content)}") == content
