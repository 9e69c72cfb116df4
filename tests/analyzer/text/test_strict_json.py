"""JSON that every parser accepts."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.text.strict_json import to_json, to_json_line, to_plain


@dataclass(frozen=True)
class Point:
    x: float
    label: str


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def parsed(text: str) -> Any:
    return json.loads(text, parse_constant=lambda token: pytest.fail(f"{token} is not JSON"))


def as_read_back(value: Any) -> Any:
    """What a reader of the JSON has in place of a value."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    if isinstance(value, list):
        return [as_read_back(one) for one in value]
    if isinstance(value, dict):
        return {key: as_read_back(one) for key, one in value.items()}
    return value


@given(VALUES)
def test_whatever_is_written_is_read_back(value: Any) -> None:
    assert parsed(to_json(value)) == as_read_back(value)
    assert parsed(to_json_line(value)) == as_read_back(value)


@given(VALUES)
def test_it_is_ascii_and_holds_no_markup_and_no_control_characters(value: Any) -> None:
    text = to_json(value)
    assert text.isascii()
    assert not set(text) & set("<>&\x1b\x00\x7f")


@given(VALUES)
def test_a_line_is_one_line(value: Any) -> None:
    line = to_json_line(value)
    assert line.endswith("\n")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(math.inf, '"inf"'), (-math.inf, '"-inf"'), (math.nan, '"nan"'), (5e-324, "5e-324"), (0.1, "0.1")],
)
def test_numbers(value: float, text: str) -> None:
    assert to_json_line(value) == f"{text}\n"


def test_dataclasses_paths_tuples_and_sets_become_what_json_knows() -> None:
    value = {
        "point": Point(math.nan, "a"),
        "path": Path("a/b"),
        "pair": (1, 2),
        "set": frozenset({2, 1}),
        "range": range(2),
    }
    assert to_plain(value) == {
        "point": {"x": "nan", "label": "a"},
        "path": "a/b",
        "pair": [1, 2],
        "set": [1, 2],
        "range": [0, 1],
    }


def test_a_name_that_is_no_text_is_still_json() -> None:
    # GIVEN a file's name that is not UTF-8, as the operating system hands it over
    name = b"a\xff".decode("utf-8", "surrogateescape")

    # THEN the JSON is UTF-8 that says which byte it was
    assert parsed(to_json_line(name)) == "a\\udcff"


def test_another_type_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="object has no place in JSON"):
        to_json(object())
