"""What one trace has alone: the other run did not have it, or it was only not recorded there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from overflow_analyzer.diff import diff_traces
from tests.analyzer.diffing import MODULES, compare, renumbered, trace_of, training
from tests.traces import RUN, frame, tensor

if TYPE_CHECKING:
    from overflow_analyzer.diff import OnlyIn
    from overflow_analyzer.format.frames import Frame

COUNT = len(MODULES)


def reasons(items: tuple[OnlyIn, ...]) -> list[tuple[str, str | None, int | None, int | None]]:
    return [(one.reason, one.module_name, one.first_batch, one.last_batch) for one in items]


def without(frames: list[Frame], *places: int) -> list[Frame]:
    """A trace that did not keep some frames, though they ran: the numbers of the others stay."""
    return [one for at, one in enumerate(frames) if at not in places]


def test_a_batch_of_one_trace_alone_is_no_difference() -> None:
    frames = training(4)
    diff = compare(frames, [one for one in frames if one.batch_number != 2])
    assert diff.same
    assert reasons(diff.only_in_a) == [("batch", None, 2, 2)]
    assert (diff.only_in_a[0].batches, diff.only_in_a[0].frames) == (1, COUNT)


@pytest.mark.parametrize("place", [0, 2, COUNT - 1])
def test_a_frame_that_was_not_kept_is_no_difference(place: int) -> None:
    frames = training(1)
    diff = compare(frames, without(frames, place))
    if place < COUNT - 1:
        assert diff.same
        assert reasons(diff.only_in_a) == [("window", MODULES[place], 0, 0)]
    else:  # the last frame of a run that ended well is missing: it never ran
        assert not diff.same


@pytest.mark.parametrize("place", range(COUNT))
def test_a_frame_that_never_ran_is_one(place: int) -> None:
    frames = training(1)
    diff = compare(frames, renumbered(without(frames, place)))
    assert not diff.same
    assert reasons(diff.only_in_a) == [("structure", MODULES[place], 0, 0)]


def test_after_the_end_of_a_killed_run_nothing_is_known() -> None:
    frames = training(2)
    killed = trace_of(frames[: COUNT + 3], ended="killed")
    diff = diff_traces(trace_of(frames), killed)
    assert diff.same
    assert {reason for reason, *_ in reasons(diff.only_in_a)} == {"window"}
    assert [note for note in diff.notes if "killed" in note]


def test_a_window_that_begins_in_the_middle_of_a_batch() -> None:
    frames = training(3)
    diff = compare(frames, frames[COUNT + 2 :])
    assert diff.same
    assert reasons(diff.only_in_a)[0] == ("batch", None, 0, 0)
    assert reasons(diff.only_in_a)[1:] == [("window", MODULES[0], 1, 1), ("window", MODULES[1], 1, 1)]
    assert diff.compared.frames == 2 * COUNT - 2


def test_windows_of_one_batch_without_a_common_frame() -> None:
    frames = training(1)
    diff = diff_traces(trace_of(frames[:3], ended="killed"), trace_of(frames[3:]))
    assert not diff.same
    assert diff.first_divergence is None
    assert diff.nothing_compared is not None
    assert "no module is in both" in diff.nothing_compared


def test_an_entry_that_one_run_does_not_have_is_a_difference() -> None:
    frames = training(1)
    fewer = [replace(frames[0], entries=frames[0].entries[:2]), *frames[1:]]
    diff = compare(frames, fewer)
    first = diff.first_divergence
    assert first is not None
    assert (first.kind, first.only_in, first.role, first.context) == ("structure", "a", "output", "output")
    assert [(one.module_name, one.role, one.context) for one in diff.only_in_a] == [("embed", "output", "output")]


def test_a_role_that_was_not_recorded_is_no_difference() -> None:
    frames = training(1)
    weightless = [replace(one, entries=one.entries[1:]) for one in frames]
    run = replace(RUN, options={**RUN.options, "roles": ["input", "output"]})
    diff = diff_traces(trace_of(frames), trace_of(weightless, run=run))
    assert diff.same
    assert {one.reason for one in diff.only_in_a} == {"role"}


@pytest.mark.parametrize("phase", ["recompute", "manual"])
def test_recomputed_and_manual_frames_are_no_difference(phase: Any) -> None:
    frames = training(1)
    extra = frame(COUNT, 0, "embed", tensor("output", "output"), in_batch=COUNT, call_index=1, phase=phase)
    diff = compare(frames, [*frames, extra])
    assert diff.same
    assert [one.reason for one in diff.only_in_b] == ["recompute" if phase == "recompute" else "role"]


def test_train_and_eval_are_compared_and_the_mode_is_told() -> None:
    frames = training(1)
    diff = compare(frames, [replace(one, phase="eval") for one in frames])
    assert diff.same
    assert diff.compared.frames == COUNT
    assert [(one.what, one.a, one.b, one.entries) for one in diff.structure] == [("mode", "train", "eval", 3 * COUNT)]


def test_a_second_call_in_one_run_alone_is_a_difference() -> None:
    frames = training(1)
    again = replace(frames[0], call_index=1)
    diff = compare(frames, renumbered([*frames[:2], again, *frames[2:]]))
    first = diff.first_divergence
    assert first is not None
    assert (first.kind, first.only_in, first.module_name, first.call_index) == ("structure", "b", "embed", 1)


def test_frames_in_another_order_are_still_paired() -> None:
    frames = training(1)
    swapped = renumbered([frames[1], frames[0], *frames[2:]])
    diff = compare(frames, swapped)
    assert diff.same
    assert (diff.only_in_a, diff.only_in_b) == ((), ())


def test_other_shapes_and_kinds_are_told_by_entry() -> None:
    frames = training(2)
    entries = frames[1].entries
    none = replace(entries[1], kind="none", dtype=None, shape=None, numel=0, abs_min=None, abs_max=None)
    other = [
        replace(one, entries=(replace(entries[0], shape=(2, 2)), none, entries[2])) if at == 1 else one
        for at, one in enumerate(frames)
    ]
    diff = compare(frames, other)
    assert {(one.what, one.a, one.b, one.module_name, one.context) for one in diff.structure} >= {
        ("shape", "[4]", "[2, 2]", "block.fc1", "weight"),
        ("kind", "tensor", "none", "block.fc1", "input[0]"),
    }
    first = diff.first_divergence
    assert first is not None
    assert first.largest is not None
    assert (first.kind, first.context) == ("structure", "weight")
    assert (first.largest.figure, first.largest.a, first.largest.b) == ("shape", "[4]", "[2, 2]")
