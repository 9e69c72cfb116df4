"""Runs whose batches have other numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.analyzer.diffing import changed, compare, training

if TYPE_CHECKING:
    from overflow_analyzer.format.frames import Frame


def numbered_from(frames: list[Frame], first: int) -> list[Frame]:
    return [replace(one, batch_number=one.batch_number + first) for one in frames]


def resumed(frames: list[Frame], at_batch: int) -> list[Frame]:
    """The rest of a run as its own run, numbered from 0 again."""
    rest = [one for one in frames if one.batch_number >= at_batch]
    return [
        replace(one, batch_number=one.batch_number - at_batch, frame_number=number) for number, one in enumerate(rest)
    ]


def test_other_numbers_are_found_from_the_figures() -> None:
    frames = training(3)
    diff = compare(frames, numbered_from(changed(frames, 14, 2, abs_max=99.0), 100))
    assert (diff.alignment.offset, diff.alignment.offset_found) == (100, True)
    first = diff.first_divergence
    assert first is not None
    assert (first.batch_number, first.batch_number_b, first.frame_number_a) == (2, 102, 14)


def test_a_resumed_run_is_found_in_the_middle_of_the_other() -> None:
    frames = training(6)
    diff = compare(frames, resumed(frames, 4))
    assert diff.alignment.offset == -4
    assert diff.same
    assert [(one.reason, one.first_batch, one.last_batch) for one in diff.only_in_a] == [("batch", 0, 3)]


def test_batches_that_agree_under_their_own_number_are_never_shifted() -> None:
    # GIVEN a run that stands still from batch 1 on, so that its batches agree under several numbers
    frames = training(1)
    still = [
        replace(one, batch_number=batch, frame_number=len(frames) * batch + place)
        for batch in range(4)
        for place, one in enumerate(frames)
    ]
    assert compare(still, still).alignment.offset == 0
    other = changed(still, 0, 2, abs_max=99.0)
    assert compare(still, other).alignment.offset == 0


def test_a_given_offset_is_taken_even_where_another_is_plain() -> None:
    frames = training(3)
    diff = compare(frames, numbered_from(frames, 1), offset=0)
    assert (diff.alignment.offset, diff.alignment.offset_found) == (0, False)
    assert not diff.same


def test_runs_without_a_common_batch_are_not_the_same_and_what_to_do_is_said() -> None:
    a, b = training(2), numbered_from(changed(training(1), 0, 0, abs_max=3.0), 7)
    diff = compare(a, b)
    assert not diff.same
    assert diff.first_divergence is None
    assert diff.compared.entries == 0
    assert diff.nothing_compared is not None
    assert "A has batches 0 to 1, B has batch 7" in diff.nothing_compared
    assert "--offset 7" in diff.nothing_compared

    # WHEN that is done, THEN they are compared
    assert compare(a, b, offset=7).compared.batches == 1
