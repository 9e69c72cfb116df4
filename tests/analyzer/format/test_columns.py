"""One table of columns: what is typed elsewhere for the type checker's sake agrees with it."""

from __future__ import annotations

import typing
from typing import Any

import pyarrow as pa
import pytest

from overflow_analyzer.format import frames
from overflow_analyzer.format.columns import BY_NAME, COLUMNS, SCHEMA, Column, columns_of
from overflow_analyzer.format.frames import Entry, Frame

PYTHON = {pa.int64(): int, pa.int32(): int, pa.float64(): float, pa.list_(pa.int64()): tuple[int, ...]}


def plain(column: Column) -> Any:
    """What a value of a column is in Python."""
    if column.codes:
        return typing.Literal[column.codes]
    return PYTHON.get(column.type, str)


@pytest.mark.parametrize(("owner", "kinds"), [(Frame, ("frame",)), (Entry, ("entry", "tensor", "figure"))])
def test_frames_and_entries_have_the_columns_and_their_types(owner: type, kinds: tuple[str, ...]) -> None:
    names = {**vars(frames), "Role": BY_NAME_LITERALS["role"], "Phase": BY_NAME_LITERALS["phase"]}
    hints = typing.get_type_hints(owner, {**names, "Kind": BY_NAME_LITERALS["kind"]})
    hints.pop("entries", None)
    assert set(hints) == set(columns_of(*kinds))
    for name, hint in hints.items():
        column = BY_NAME[name]
        assert hint == (plain(column) | None if column.nullable else plain(column)), name


BY_NAME_LITERALS = {column.name: plain(column) for column in COLUMNS if column.codes}


def test_names_differ_and_the_schema_has_them_in_order() -> None:
    assert len(BY_NAME) == len(COLUMNS)
    assert SCHEMA.names == [column.name for column in COLUMNS]


def test_what_diff_names_first_is_told_by_distinct_places() -> None:
    places = [column.compared for column in COLUMNS if column.compared is not None]
    assert sorted(places) == list(range(1, len(places) + 1))


def test_only_figures_are_compared_and_plotted() -> None:
    assert {column.of for column in COLUMNS if column.compared or column.plotted} == {"figure"}
