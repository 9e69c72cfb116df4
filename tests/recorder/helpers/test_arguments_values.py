"""Every type: what is made of a file's or a dict's value."""

# ruff: noqa: UP045 - every way of spelling a type, older ones too

from __future__ import annotations

import collections
import datetime as dt
from pathlib import Path, PurePosixPath
from typing import Any, Literal, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.recorder.argument_kinds import (
    JSON,
    Colour,
    Inner,
    Level,
    assert_same,
    from_value,
)

VALUES: list[tuple[Any, Any, Any]] = [
    (int, 3, 3),
    (int, 3.0, 3),
    (int, "3", 3),
    (int, np.int64(3), 3),
    (int, np.float32(3), 3),
    (int, Level.HIGH, 2),
    (float, 3, 3.0),
    (float, 0.5, 0.5),
    (float, "1e-4", 1e-4),
    (float, np.float32(0.5), 0.5),
    (complex, 3, 3 + 0j),
    (str, "3", "3"),
    (bool, True, True),
    (bool, 1, True),
    (bool, "no", False),
    (bytes, "a", b"a"),
    (bytes, bytearray(b"a"), b"a"),
    (Path, "a", Path("a")),
    (Path, PurePosixPath("a"), Path("a")),
    (Any, {"a": [1, None]}, {"a": [1, None]}),
    (object, None, None),
    (Colour, "red", Colour.RED),
    (Colour, "RED", Colour.RED),
    (Colour, Colour.RED, Colour.RED),
    (Level, 2, Level.HIGH),
    (Literal[1, "1"], "1", "1"),
    (Literal[1, "1"], 1, 1),
    (Literal[1], "1", 1),
    (Literal[True], True, True),
    (list[float], [1, 2], [1.0, 2.0]),
    (list[int], (1, 2), [1, 2]),
    (list, [1, "a"], [1, "a"]),
    (set[int], [1, 1], {1}),
    (set[int], {1}, {1}),
    (tuple[int, str], [1, "a"], (1, "a")),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple, [1, "a"], (1, "a")),
    (dict, {"a": 1}, {"a": 1}),
    (dict[str, Path], {"a": "b"}, {"a": Path("b")}),
    (dict[int, float], {"1": 2}, {1: 2.0}),
    (dict, collections.OrderedDict(a=1), {"a": 1}),
    (Optional[int], None, None),
    (Optional[int], "None", None),
    (Optional[float], 3, 3.0),
    (Optional[str], None, None),
    (int | str, "3", "3"),
    (int | str, 3, 3),
    (float | str, "1e-4", "1e-4"),
    (float | int, 3, 3),
    (bool | int, 1, 1),
    (bool | int, True, True),
    (list[int] | list[str], ["a"], ["a"]),
    (str | list[str], ["a"], ["a"]),
    (Colour | None, "blue", Colour.BLUE),
    (Inner, {"size": 1}, Inner(1)),
    (Inner, Inner(1), Inner(1)),
    (list[Inner], [{"size": "1"}], [Inner(1)]),
    (dt.date, dt.date(2024, 1, 1), dt.date(2024, 1, 1)),
    (dt.date, "2024-01-01", dt.date(2024, 1, 1)),
]


@pytest.mark.parametrize(("hint", "value", "expected"), VALUES)
def test_a_value_is_converted(hint: Any, value: object, expected: object) -> None:
    assert_same(from_value(hint, value), expected)


WRONG_VALUES: list[tuple[Any, Any, str]] = [
    (int, 3.5, "expected int, got 3.5 .float"),
    (int, True, "got True .bool"),
    (int, None, "got None .NoneType"),
    (int, float("inf"), "expected int"),
    (int, float("nan"), "expected int"),
    (int, [3], "expected int"),
    (float, False, "expected float"),
    (float, 10**400, "expected float"),
    (float, 1j, "expected float"),
    (str, 3, "expected str, got 3 .int.; put it in quotes"),
    (str, False, "put it in quotes"),
    (str, None, "expected str"),
    (bool, 2, "expected bool"),
    (bool, 1.0, "expected bool"),
    (bool, "maybe", "expected bool"),
    (bytes, 3, "expected bytes"),
    (Path, 3, "expected path"),
    (Colour, 3, "one of red, blue"),
    (Level, True, "one of 1, 2"),
    (Literal[1], True, "one of 1"),
    (Literal[1], 1.0, "one of 1"),
    (list[int], "a", "expected list of int"),
    (list[str], "a", "expected list of str"),
    (list[int], {"a": 1}, "expected list of int"),
    (list[int], [1, "a"], "element 1: expected int"),
    (list[int], {1}, "expected list of int"),
    (tuple[int, str], [1], "1 values for 2"),
    (tuple[int, str], [1, 2], "element 1: expected str"),
    (tuple[int, str], 3, "expected tuple of .int, str."),
    (dict, [1], "expected dict"),
    (dict[str, int], {1: 1}, "key 1: expected str"),
    (dict[str, int], {"a": "b"}, "key 'a': expected int"),
    (Optional[int], "x", "expected int"),
    (int | bool, "x", "expected int or bool"),
    (Inner, {"size": "x"}, "Inner.size: expected int"),
    (Inner, {}, "Inner.size: missing"),
    (Inner, 3, "expected Inner"),
    (dt.date, 3, "expected date"),
]


@pytest.mark.parametrize(("hint", "value", "message"), WRONG_VALUES)
def test_a_wrong_value_is_refused_with_class_and_field(hint: Any, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^Args\.x: .*{message}"):
        from_value(hint, value)


def test_what_a_container_gives_is_not_the_callers_object() -> None:
    given_list = [1, 2]

    made = from_value(list[int], given_list)

    assert made == given_list
    assert made is not given_list


@given(JSON, st.sampled_from([hint for hint, _, _ in VALUES]))
def test_any_value_is_converted_to_the_type_or_refused(value: object, hint: Any) -> None:
    try:
        made = from_value(hint, value)
    except ValueError as error:
        assert str(error).startswith("Args.x: ")  # noqa: PT017 - both outcomes are right
    else:
        # What is of the type stays as it is.
        assert_same(from_value(hint, made), made)
