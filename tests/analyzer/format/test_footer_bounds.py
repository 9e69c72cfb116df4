"""Bounds read from a footer's bytes are those that Arrow reads from the same footer, and damage is never a signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.format import footer_bounds
from overflow_analyzer.format.footer_bounds import Bounds, Leaf, read_bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

INTEGERS = {"a": pa.int64(), "b": pa.int32(), "c": pa.int64()}
SCHEMA = pa.schema(
    [*INTEGERS.items(), ("name", pa.dictionary(pa.int32(), pa.string())), ("list", pa.list_(pa.int64()))]
)
COLUMN = st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=3, max_size=3)
GROUP = st.fixed_dictionaries(dict.fromkeys(INTEGERS, COLUMN) | {"name": st.lists(st.text(), min_size=3, max_size=3)})


@pytest.fixture(autouse=True)
def _nothing_learnt() -> None:
    footer_bounds._layout_of.cache_clear()


def write(groups: Sequence[dict[str, Any]], **options: Any) -> bytes:
    """A Parquet file with a row group for each of these."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, **options) as writer:
        for group in groups:
            columns = [pa.array(group[name], field.type) for name, field in zip(INTEGERS, SCHEMA, strict=False)]
            names = pa.array(group["name"], pa.string()).dictionary_encode()
            writer.write_table(pa.table([*columns, names, [[1, 2], None, []]], schema=SCHEMA))
    data: bytes = sink.getvalue().to_pybytes()
    return data


def footer_of(data: bytes) -> bytes:
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def leaves_of(data: bytes) -> tuple[Leaf, ...]:
    schema = pq.read_metadata(pa.BufferReader(data)).schema
    columns = [schema.column(at) for at in range(len(schema))]
    return tuple(
        Leaf(
            one.path,
            INTEGERS[one.path].bit_width // 8 if one.path in INTEGERS else 0,
            (one.max_repetition_level + 1, one.max_definition_level + 1),
        )
        for one in columns
    )


def ours(data: bytes) -> list[dict[str, Bounds]]:
    groups = pq.read_metadata(pa.BufferReader(data)).num_row_groups
    return read_bounds(footer_of(data), leaves_of(data), groups)


def arrows(data: bytes) -> list[dict[str, Bounds]]:
    """What Arrow's accessors say, which is safe with a file that Arrow has just written."""
    metadata = pq.read_metadata(pa.BufferReader(data))
    found = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        statistics = {name: group.column(at).statistics for at, name in enumerate(INTEGERS)}
        found.append(
            {name: (one.min, one.max) for name, one in statistics.items() if one is not None and one.has_min_max}
        )
    return found


@settings(max_examples=40)
@given(groups=st.lists(GROUP, max_size=30))
def test_bounds_are_those_that_arrow_reads(groups: list[dict[str, Any]]) -> None:
    # GIVEN any row groups: nulls, columns of nulls alone (which have no bounds), names of any length
    data = write(groups)

    # THEN the first reading, and a second one, which may search where the first has walked, say what Arrow says
    assert ours(data) == arrows(data)
    assert ours(data) == arrows(data)


def test_many_row_groups_that_stand_alike_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN more row groups than are walked through before it is worth while to search
    data = write([{"a": [at, -at, 7], "b": [1, 2, at], "c": [0, 0, 0], "name": ["x" * at] * 3} for at in range(100)])
    walked: list[footer_bounds._Layout] = []
    walk = footer_bounds._Layout.pass_row_group

    def count(layout: footer_bounds._Layout, at: Any) -> dict[str, Bounds]:
        walked.append(layout)
        return walk(layout, at)

    monkeypatch.setattr(footer_bounds._Layout, "pass_row_group", count)

    # THEN all have their bounds, and few were walked through
    assert (
        ours(data)
        == arrows(data)
        == [{"a": (-at, max(at, 7)), "b": (min(1, at), max(2, at)), "c": (0, 0)} for at in range(100)]
    )
    assert len(walked) < 20

    # AND a file of the same columns without them is not taken for one with
    nulls = write([{"a": [None] * 3, "b": [1, 2, 3], "c": [0, 0, 0], "name": ["x"] * 3}])
    assert ours(nulls) == arrows(nulls) == [{"b": (1, 3), "c": (0, 0)}]


def test_a_file_without_statistics_has_no_bounds() -> None:
    data = write([{"a": [1, 2, 3], "b": [1, 2, 3], "c": [0, 0, 0], "name": ["x"] * 3}] * 20, write_statistics=False)
    assert ours(data) == [{}] * 20


def test_bounds_of_another_size_are_none() -> None:
    # GIVEN statistics of int64 columns WHEN they are taken for int32, THEN they say nothing
    data = write([{"a": [1, 2, 3], "b": [1, 2, 3], "c": [0, 0, 0], "name": ["x"] * 3}])
    leaves = tuple(leaf._replace(size=4) if leaf.size else leaf for leaf in leaves_of(data))
    assert read_bounds(footer_of(data), leaves, 1) == [{"b": (1, 3)}]


@settings(max_examples=300)
@given(data=st.data())
def test_damage_is_a_value_error_or_a_reading(data: st.DataObject) -> None:
    # GIVEN a footer of which bytes were changed, cut or put in
    whole = write([{"a": [1, 2, 3], "b": [1, 2, 3], "c": [0, 0, 0], "name": ["x"] * 3}] * 3)
    footer = bytearray(footer_of(whole))
    at = data.draw(st.integers(0, len(footer) - 1))
    footer[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))

    # THEN it is refused, or read as three row groups
    try:
        found = read_bounds(bytes(footer), leaves_of(whole), 3)
    except ValueError:
        return
    assert len(found) == 3
