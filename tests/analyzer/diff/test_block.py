"""Blocks hold the rows that numpy's own indexing would give, and one value for all rows stays one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.diff.stream.block import Block, constant, looked_up

ROWS = 6


def example() -> Block:
    figures = np.arange(ROWS) * 0.5
    return Block(
        {"batch": np.arange(ROWS), "abs_max": figures, "finite_abs_max": figures, "kind": constant(np.int64(7), ROWS)}
    )


def plain(block: Block) -> dict[str, list[Any]]:
    return {name: column.tolist() for name, column in block.columns.items()}


@given(rows=st.lists(st.integers(0, ROWS - 1)))
def test_rows_taken_are_those_of_numpy(rows: list[int]) -> None:
    at = np.array(rows, np.int64)
    assert plain(example().take(at)) == {name: column[at].tolist() for name, column in example().columns.items()}


@given(keep=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS))
def test_a_mask_keeps_the_rows_where_it_is_true(keep: list[bool]) -> None:
    mask = np.array(keep)
    assert plain(example().take(mask)) == {name: column[mask].tolist() for name, column in example().columns.items()}


@pytest.mark.parametrize(
    "rows", [slice(1, 4), np.array([1, 2, 3]), np.array([3, 1]), np.array([0, 1, 0, 0, 1, 1]) == 1]
)
def test_what_is_one_stays_one(rows: Any) -> None:
    taken = example().take(rows)
    assert taken["finite_abs_max"] is taken["abs_max"]
    assert taken["kind"].strides == (0,)


@given(cuts=st.sets(st.integers(0, ROWS)))
def test_pieces_put_together_are_the_whole(cuts: set[int]) -> None:
    bounds = sorted({0, ROWS} | cuts)
    pieces = [example().take(slice(start, stop)) for start, stop in itertools.pairwise(bounds)]
    joined = Block.concatenate(pieces)
    assert plain(joined) == plain(example())
    assert joined["kind"].strides == (0,)


def test_pieces_with_another_value_each_hold_both() -> None:
    pieces = [Block({"batch": constant(np.int64(value), 2)}) for value in (3, 4)]
    assert Block.concatenate(pieces)["batch"].tolist() == [3, 3, 4, 4]


def test_looking_up_one_position_for_all_rows_gives_one_value() -> None:
    values = np.array([10.0, 20.0])
    assert looked_up(values, constant(np.int32(1), 3)).tolist() == [20.0] * 3
    assert looked_up(values, np.array([1, 0])).tolist() == [20.0, 10.0]
