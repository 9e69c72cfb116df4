from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_recorder.recorder_arguments import RecorderArguments
from overflow_recorder.recording.batches import BatchCounter


def counter(**options: object) -> BatchCounter:
    return BatchCounter(RecorderArguments(**options))  # type: ignore[arg-type]  # the options of each test


def call(batches: BatchCounter) -> int:
    """One root forward; returns the batch it belongs to."""
    batches.root_starts()
    assert batches.root_ends()
    return batches.current.number


@given(st.integers(0, 30))
def test_each_root_forward_is_a_batch(calls: int) -> None:
    batches = counter()
    assert [call(batches) for _ in range(calls)] == list(range(calls))


def test_what_follows_a_forward_belongs_to_it_until_the_next_one() -> None:
    # GIVEN
    batches = counter()
    call(batches)

    # WHEN a second batch has begun and ended
    first = batches.current
    call(batches)

    # THEN
    assert (first.number, batches.current.number) == (0, 1)


def test_a_forward_that_never_returned_is_a_batch() -> None:
    # GIVEN
    batches = counter()
    batches.root_starts()

    # WHEN the next one starts
    assert batches.root_starts()

    # THEN
    assert batches.current.number == 1
    assert batches.root_ends()


@given(st.integers(1, 5))
def test_a_root_that_calls_itself_is_one_batch(depth: int) -> None:
    # GIVEN
    batches = counter()

    # WHEN
    batches.root_starts()
    for _ in range(depth):
        assert not batches.root_starts(nested=True)

    # THEN only the outermost return is the end
    assert [batches.root_ends() for _ in range(depth + 1)] == [False] * depth + [True]
    assert batches.root_starts()
    assert batches.current.number == 1


def test_once_the_loop_counts_root_forwards_do_not() -> None:
    # GIVEN
    batches = counter()
    call(batches)

    # WHEN
    batches.begin(7)

    # THEN
    assert [call(batches) for _ in range(3)] == [7, 7, 7]
    batches.set_number(3)
    assert [call(batches) for _ in range(2)] == [3, 3]


def test_root_forwards_count_on_from_a_number_that_is_set_once() -> None:
    # GIVEN
    batches = counter()
    call(batches)

    # WHEN
    batches.set_number(100)

    # THEN
    assert [call(batches) for _ in range(3)] == [100, 101, 102]

    # WHEN it is set again, THEN the loop is the one that counts
    batches.set_number(7)
    assert [call(batches) for _ in range(2)] == [7, 7]


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_after_a_pause_the_next_batch_begins_if_the_last_one_was_in_use(calls: int) -> None:
    batches = counter()
    for _ in range(calls):
        call(batches)
    batches.resume()
    batches.resume()
    assert call(batches) == calls


@given(st.lists(st.integers(0, 40), max_size=5), st.one_of(st.none(), st.integers(1, 9)), st.integers(0, 40))
def test_selected_batches(numbers: list[int], every: int | None, number: int) -> None:
    batches = counter(trace_batch_nums=numbers, every_n_batches=every)
    batches.set_number(number)
    assert batches.current.selected == (number in numbers or (every is not None and number % every == 0))


def test_calls_are_counted_by_name() -> None:
    batch = counter().current
    assert [batch.next_call(name) for name in ("a", "b", "a", ("a", 3), "a")] == [0, 0, 1, 0, 2]
