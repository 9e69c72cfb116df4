"""Types that the tests of arguments share, and one field of any type parsed from either side."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from enum import Enum, IntEnum
from typing import Any, NewType

from hypothesis import strategies as st

from overflow_recorder.helpers.arguments import DataclassArgumentParser


class Colour(Enum):
    RED = "red"
    BLUE = "blue"
    AZURE = "blue"  # noqa: PIE796 - an alias


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Inner:
    size: int
    children: list[Inner] = field(default_factory=list)


UserId = NewType("UserId", int)


def parser_of(hint: Any) -> DataclassArgumentParser:
    return DataclassArgumentParser(make_dataclass("Args", [("x", hint)]))


def from_line(hint: Any, *texts: str) -> Any:
    (made,) = parser_of(hint).parse_args_into_dataclasses(list(texts))
    return made.x


def from_value(hint: Any, value: object) -> Any:
    (made,) = parser_of(hint).parse_dict({"x": value})
    return made.x


def assert_same(actual: object, expected: object) -> None:
    """Equal, and of the same types all the way down."""
    assert actual == expected
    assert repr(actual) == repr(expected)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=8,
)
"""Anything that JSON can hold."""
