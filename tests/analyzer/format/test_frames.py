"""Frames as plain values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer.format import frames as frames_module
from overflow_analyzer.format.frames import frames_from_tables
from tests.analyzer.samples import two_batches
from tests.traces import frame, table_of, tensor

if TYPE_CHECKING:
    import pyarrow as pa


@pytest.mark.parametrize("rows_at_once", [1, 3, 4096])
@pytest.mark.parametrize("cut", [1, 4, 16])
def test_frames_are_the_same_wherever_their_rows_are_cut(
    rows_at_once: int, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN rows in tables of any size, looked at in pieces of any size
    monkeypatch.setattr(frames_module, "_ROWS_AT_ONCE", rows_at_once)
    table = table_of(two_batches())
    pieces = [table.slice(start, cut) for start in range(0, table.num_rows, cut)]

    # THEN the frames are those that were written
    assert list(frames_from_tables(pieces)) == two_batches()


def test_no_rows_no_frames() -> None:
    assert list(frames_from_tables([])) == []
    assert list(frames_from_tables([table_of([])])) == []


@pytest.mark.parametrize(
    ("counts", "note", "bad"),
    [
        ((0, 0, 0), None, False),
        ((1, 0, 0), None, True),
        ((0, 1, 0), "near the limit", True),
        ((0, 0, 1), "near the limit; ignored", False),
        ((0, 0, 1), "ignored for now", True),
        ((None, None, None), None, False),
    ],
)
def test_what_counts_as_bad(counts: tuple[int | None, int | None, int | None], note: str | None, bad: bool) -> None:
    nan, positive, negative = counts
    entry = replace(tensor("output", "output"), nan_count=nan, posinf_count=positive, neginf_count=negative, note=note)
    assert entry.nonfinite is bad
    assert frame(0, 0, "a", entry).nonfinite_entries == ((entry,) if bad else ())


def test_entries_of_a_role() -> None:
    one = frame(0, 0, "a", tensor("weight", "weight"), tensor("input", "input[0]"), tensor("output", "output"))
    assert [entry.context for entry in one.of_roles("output", "weight")] == ["weight", "output"]


def test_large_tables_are_not_turned_into_objects_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a table WHEN only its first frame is asked for
    monkeypatch.setattr(frames_module, "_ROWS_AT_ONCE", 2)
    asked = []

    class Counting:
        num_rows = 1000

        def slice(self, start: int, length: int) -> pa.Table:
            asked.append(start)
            return table_of([frame(start + at, 0, "a", tensor("output", "output")) for at in range(length)])

    next(frames_from_tables([Counting()]))

    # THEN only the first rows were looked at
    assert asked == [0]
