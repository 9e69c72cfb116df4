"""Every row is in exactly one region, and its counterpart is the one that a dictionary finds."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer.diff.align.pairing import equal_rows, pair_keys
from overflow_analyzer.diff.align.regions import regions
from overflow_analyzer.diff.stream.block import BACKWARD, FORWARD, KEY, Block
from overflow_analyzer.diff.stream.grouping import pack_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Row = tuple[int, int, int, int]
"""batch, module, call, walk"""
ROWS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 1), st.sampled_from([FORWARD, BACKWARD])),
    max_size=30,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


def block(rows: Sequence[Row], first_row: int = 0) -> Block:
    batch, module, call, walk = np.array(rows, np.int64).reshape(-1, 4).T
    number = np.arange(first_row, first_row + len(rows))
    same = np.zeros(len(rows), np.int64)
    return Block(
        {"batch": batch, "module": module, "call": call, "walk": walk, "role": same, "context": same}
        | {"frame": number, "in_batch": number, "segment": same}
    )


def blocks(rows: Sequence[Row], cuts: set[int]) -> Iterator[Block]:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    for start, stop in itertools.pairwise(bounds):
        if start < stop:
            yield block(rows[start:stop], start)


def pairs_by_dictionary(a: Sequence[Row], b: Sequence[Row]) -> set[tuple[int, int]]:
    """The n-th row of a key with the n-th; the index of a gradient's call is no part of it."""
    in_b = defaultdict(list)
    for number, (batch, module, call, walk) in enumerate(b):
        in_b[batch, module, call if walk == FORWARD else 0, walk].append(number)
    found = set()
    for number, (batch, module, call, walk) in enumerate(a):
        candidates = in_b[batch, module, call if walk == FORWARD else 0, walk]
        if candidates:
            found.add((number, candidates.pop(0)))
    return found


def frames(one: Block) -> list[int]:
    numbers: list[int] = one["frame"].tolist()
    return numbers


@given(a=ROWS, b=ROWS, cuts_a=st.sets(st.integers(1, 29)), cuts_b=st.sets(st.integers(1, 29)))
@settings(max_examples=200)
def test_pairs_are_those_of_a_dictionary(a: list[Row], b: list[Row], cuts_a: set[int], cuts_b: set[int]) -> None:
    found, rows_a, rows_b = set(), [], []
    for region in regions(blocks(a, cuts_a), blocks(b, cuts_b)):
        one, other = region.paired()
        found |= set(zip(frames(one), frames(other), strict=True))
        rows_a += frames(region.a)
        rows_b += frames(region.b)
    assert found == pairs_by_dictionary(a, b)
    assert (rows_a, rows_b) == (list(range(len(a))), list(range(len(b))))


@given(rows=ROWS, cuts_a=st.sets(st.integers(1, 29)), cuts_b=st.sets(st.integers(1, 29)))
def test_equal_runs_are_never_sorted(rows: list[Row], cuts_a: set[int], cuts_b: set[int]) -> None:
    for region in regions(blocks(rows, cuts_a), blocks(rows, cuts_b)):
        assert region.rows_a is None
        assert frames(region.a) == frames(region.b)


@given(a=ROWS, b=ROWS)
def test_pairs_come_in_order_of_batches(a: list[Row], b: list[Row]) -> None:
    batches = [batch for region in regions(blocks(a, set()), blocks(b, set())) for batch in region.paired()[0]["batch"]]
    assert batches == sorted(batches)


def test_batch_numbers_that_go_backwards_are_paired_all_the_same() -> None:
    rows = [(5, 0, 0, 0), (3, 0, 0, 0), (4, 1, 0, 0)]
    paired = [
        pair
        for region in regions(blocks(rows, {1}), blocks([(9, 9, 0, 0), *rows], {2}))
        for pair in zip(*map(frames, region.paired()), strict=True)
    ]
    assert len(paired) <= len(rows)


def test_keys_too_wide_for_64_bits_are_still_told_apart() -> None:
    # GIVEN columns whose ranges multiply to more than an int64 holds
    wide = [(0, 2**40, 1, 0), (2**40, 2**20, 0, 0), (2**40, 2**20, 1, 0)]
    a, b = block(wide), block(wide[::-1])
    keys = pack_keys([np.concatenate([a[name], b[name]]) for name in KEY], 6).tolist()
    assert len(set(keys)) == 3
    assert keys[:3] == keys[3:][::-1]


def test_equal_rows_stops_at_the_first_that_differs() -> None:
    a, b = block([(0, 0, 0, 0), (0, 1, 0, 0)]), block([(0, 0, 0, 0), (0, 2, 0, 0)])
    assert [equal_rows(a.take(slice(count)), b, KEY) for count in (0, 1, 2)] == [0, 1, 1]


@given(a=st.lists(st.integers(0, 5)), b=st.lists(st.integers(0, 5)))
def test_repeated_keys_are_paired_in_their_order(a: list[int], b: list[int]) -> None:
    rows_a, rows_b = pair_keys(np.array(a, np.int64), np.array(b, np.int64))
    expected = pairs_by_dictionary([(0, key, 0, 0) for key in a], [(0, key, 0, 0) for key in b])
    assert set(zip(rows_a.tolist(), rows_b.tolist(), strict=True)) == expected
    assert rows_a.tolist() == sorted(rows_a.tolist())
