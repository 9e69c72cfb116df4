"""Which numbers were kept, against sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.trace import gaps
from overflow_analyzer.trace.gaps import Gap, Kept

if TYPE_CHECKING:
    import pytest

SOME = st.lists(st.sets(st.integers(0, 60), min_size=1, max_size=20), min_size=1, max_size=4)


def built(pieces: list[set[int]], *, by_range: bool) -> Kept:
    """Add pieces, each put behind the ones before."""
    builder, behind = Kept(), 0
    for piece in pieces:
        if by_range:
            builder.add_range(behind + min(piece), behind + max(piece))
        else:
            builder.add_numbers(np.array([behind + number for number in sorted(piece, reverse=True)] * 2, np.int64))
        behind += max(piece) + 1
    return builder


def numbers_in(pieces: list[set[int]], *, by_range: bool) -> set[int]:
    numbers: set[int] = set()
    behind = 0
    for piece in pieces:
        numbers |= {behind + one for one in (range(min(piece), max(piece) + 1) if by_range else piece)}
        behind += max(piece) + 1
    return numbers


@given(SOME, st.booleans(), st.none() | st.integers(0, 300))
def test_counts_and_gaps_are_those_of_the_set(pieces: list[set[int]], by_range: bool, total: int | None) -> None:
    # GIVEN numbers in pieces WHEN they are collected
    kept = built(pieces, by_range=by_range)
    kept.end_at(total or 0)
    numbers = numbers_in(pieces, by_range=by_range)

    # THEN a set of the same numbers agrees
    end = max([*numbers, (total or 0) - 1])
    absent = set(range(end + 1)) - numbers
    assert (kept.count, kept.first, kept.last) == (len(numbers), min(numbers), max(numbers))
    assert kept.missing == len(absent)
    assert {one for gap in kept.gaps for one in range(gap.first, gap.last + 1)} == absent
    assert kept.gap_count == len(kept.gaps) == len(absent - {one + 1 for one in absent})


def test_a_number_that_comes_again_counts_once() -> None:
    kept = Kept()
    kept.add_numbers(np.array([0, 1, 2]))
    kept.add_numbers(np.array([2, 3]))
    kept.add_range(3, 4)
    assert kept.count == 5


def test_nothing_kept() -> None:
    kept = Kept()
    assert kept.first is None
    kept.end_at(3)
    assert kept.gaps == [Gap(0, 2)]


def test_many_gaps_are_counted_but_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN every second number of many
    monkeypatch.setattr(gaps, "MOST_GAPS", 10)
    kept = Kept()
    kept.add_numbers(np.arange(0, 1000, 2))
    kept.add_range(2000, 2001)

    # THEN memory does not grow with them, and the figures are whole
    assert len(kept.gaps) == 10
    assert kept.gap_count == 500
    assert kept.missing == 2002 - 502
