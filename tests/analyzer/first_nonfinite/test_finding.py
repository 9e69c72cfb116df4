"""Where the first inf/nan is, which frame made it and what the frames around it did with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from overflow_analyzer import NotRecordedError, open_trace
from overflow_analyzer.first_nonfinite.finding import RankFinding, find_first_nonfinite
from overflow_analyzer.format.frames import Entry
from overflow_analyzer.render.explanation import render_explanation
from tests.analyzer.findings import absorbing, bad, carrying, find, found, making, passing, with_options
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.format.parts import RowGroup


def names(frames: tuple[Frame, ...]) -> list[str]:
    return [one.module_name for one in frames]


def test_a_finite_trace_has_no_finding(tmp_path: Path) -> None:
    assert find(tmp_path, [passing(0, 0, "a", in_batch=0), passing(1, 0, "")]) is None


def test_a_module_that_makes_nan_is_origin_and_what_follows_propagates(tmp_path: Path) -> None:
    # GIVEN a batch in which b makes a nan, c and the root carry it on, and the loss shows it
    loss = frame(5, 0, "loss", bad("value", "loss", nan=1, shape=()), phase="manual", module_class="record")
    frames = [
        passing(0, 0, "a", in_batch=0),
        making(1, 0, "b"),
        carrying(2, 0, "c"),
        passing(3, 0, "d"),
        making(4, 0, ""),  # around all: its own input is finite
        loss,
    ]
    # WHEN it is looked for
    finding = found(tmp_path, frames)
    # THEN
    assert finding.frame.frame_number == 1
    assert (finding.entry.context, finding.entry.nan_count) == ("output", 1)
    assert finding.origin is not None
    assert finding.origin.frame_number == 1
    assert names(finding.propagated) == ["c"]
    assert names(finding.chain) == ["b", "c", "", "loss"]
    assert finding.absorbed == ()
    assert finding.finite_before == frames[0]


def test_made_between_modules_the_frame_around_is_the_origin(tmp_path: Path) -> None:
    # GIVEN a parent that hands a nan of its own making to its child
    frames = [
        passing(0, 0, "block.a", in_batch=0),
        carrying(1, 0, "block.b"),
        making(2, 0, "block"),
        carrying(3, 0, ""),
    ]
    # WHEN / THEN the child is where it is first seen, the parent is what made it
    finding = found(tmp_path, frames)
    assert (finding.frame.module_name, finding.entry.context) == ("block.b", "input[0]")
    assert finding.origin is not None
    assert finding.origin.frame_number == 2


def test_made_between_modules_in_a_run_that_stopped_there_has_no_origin(tmp_path: Path) -> None:
    assert found(tmp_path, [passing(0, 0, "block.a", in_batch=0), carrying(1, 0, "block.b")]).origin is None


def test_a_bad_weight_has_no_origin_though_the_frame_around_takes_in_finite_values(tmp_path: Path) -> None:
    linear = frame(
        0, 0, "block.a", bad("weight", "weight", nan=1), tensor("input", "x"), bad("output", "output", nan=4)
    )
    finding = found(tmp_path, [replace(linear, frame_in_batch=0), making(1, 0, "block"), making(2, 0, "")])
    assert finding.entry.role == "weight"
    assert finding.origin is None
    assert names(finding.chain) == ["block.a", "block", ""]


def test_intended_infinities_are_never_found(tmp_path: Path) -> None:
    mask = bad("input", "input[mask]", neginf=2, note="ignored")
    other = bad("input", "input[bias]", neginf=2, note="overwritten; ignored")
    assert find(tmp_path, [frame(0, 0, "a", mask, other, tensor("output", "output"), in_batch=0)]) is None


def test_a_note_that_only_resembles_does_not_hide(tmp_path: Path) -> None:
    entry = bad("output", "output", inf=1, note="not ignored at all")
    assert found(tmp_path, [frame(0, 0, "a", entry, in_batch=0)]).entry.note == "not ignored at all"


def test_tensors_without_figures_prove_nothing_and_are_not_found(tmp_path: Path) -> None:
    meta = Entry("output", "output", "tensor", "float16", "meta", shape=(4,), numel=4, nan_count=None,
                 posinf_count=None, neginf_count=None)  # fmt: skip
    assert find(tmp_path, [frame(0, 0, "a", meta, in_batch=0)]) is None


# --- what is absorbed


def test_a_nan_that_is_masked_out_is_found_with_its_count_and_called_absorbed(tmp_path: Path) -> None:
    # GIVEN 1 of 1000 elements that is nan, and a module after it that gives finite values out
    one = bad("output", "output", nan=1, shape=(1000,))
    frames = [
        frame(0, 0, "ratio", tensor("input", "input[0]"), one, in_batch=0),
        absorbing(1, 0, "mask"),
        passing(2, 0, ""),
    ]
    # WHEN / THEN
    finding = found(tmp_path, frames)
    assert (finding.frame.frame_number, finding.entry.nan_count, finding.entry.numel) == (0, 1, 1000)
    assert finding.cause.name == "absorbed"
    assert names(finding.absorbed) == ["mask"]


def test_what_was_absorbed_is_not_the_fault_where_something_else_is(tmp_path: Path) -> None:
    # GIVEN a mask in every batch that softmax absorbs, and a nan in batch 2 that reaches the root
    def healthy(batch: int) -> list[Frame]:
        return [
            passing(5 * batch, batch, "q", in_batch=0),
            frame(5 * batch + 1, batch, "softmax", bad("input", "input[0]", neginf=2), tensor("output", "output")),
            passing(5 * batch + 2, batch, "v"),
            passing(5 * batch + 3, batch, "out"),
            passing(5 * batch + 4, batch, ""),
        ]

    sick = healthy(2)
    sick[2], sick[3], sick[4] = making(12, 2, "v"), carrying(13, 2, "out"), making(14, 2, "")
    # WHEN
    finding = found(tmp_path, [*healthy(0), *healthy(1), *sick])
    # THEN the nan is found, and the mask is named once
    assert finding.frame.frame_number == 12
    assert [(one.batch_number, one.module_name) for one in finding.absorbed_before] == [(0, "softmax")]
    assert names(finding.absorbed) == []


@pytest.mark.parametrize(
    ("batch", "after"),
    [
        (0, bad("value", "loss", nan=1)),
        (0, bad("weight_grad", "weight", nan=1)),
        (1, bad("weight", "weight", nan=1)),
    ],
    ids=["the loss", "a gradient", "the next weights"],
)
def test_what_a_module_made_is_no_longer_absorbed_where_the_batch_or_the_next_step_is_spoilt(
    tmp_path: Path, batch: int, after: Entry
) -> None:
    # GIVEN an inf that the next module takes in, and then a loss, a gradient or a weight that is nan
    made = frame(0, 0, "a", tensor("input", "input[0]"), bad("output", "output", inf=1))
    phase = {"value": "manual", "weight_grad": "backward", "weight": "train"}[after.role]
    later = frame(3, batch, "later", after, phase=phase, optimizer_step=batch)

    # WHEN
    finding = found(tmp_path, [made, absorbing(1, 0, "b"), passing(2, 0, ""), later])

    # THEN the first is found, and nothing advises to ignore it
    assert (finding.frame.module_name, finding.origin, finding.rule.is_harmless) == ("a", finding.frame, False)
    assert finding.led_to is not None
    assert finding.led_to.module_name == "later"
    assert "ignore=" not in render_explanation(finding)
    assert "has 1 nan of 4 elements after it" in render_explanation(finding)


def test_a_mask_that_is_absorbed_is_not_blamed_for_a_loss(tmp_path: Path) -> None:
    mask = frame(0, 0, "a", bad("input", "input[mask]", neginf=1), tensor("output", "output"))
    loss = frame(2, 0, "loss", bad("value", "loss", nan=1), phase="manual")
    finding = found(tmp_path, [mask, passing(1, 0, ""), loss])
    assert (finding.frame.module_name, finding.led_to) == ("loss", None)


def test_a_module_that_makes_nan_of_a_mask_that_others_absorb_is_where_it_is_found(tmp_path: Path) -> None:
    # GIVEN the same mask in two layers, of which the second gives nan out
    mask = bad("input", "input[mask]", neginf=1)
    first = frame(0, 0, "layers.0", mask, tensor("output", "output"))
    second = frame(1, 0, "layers.1", mask, bad("output", "output", nan=2))
    # WHEN / THEN
    finding = found(tmp_path, [first, second, frame(2, 0, "", bad("output", "output", nan=2))])
    assert (finding.frame.module_name, finding.rule.is_harmless) == ("layers.1", False)
    assert [one.module_name for one in finding.absorbed_before] == ["layers.0"]


def test_a_mask_that_the_loop_recorded_is_absorbed_where_the_model_gives_finite_values(tmp_path: Path) -> None:
    recorded = frame(0, 0, "batch", bad("value", "mask", neginf=1), phase="manual")
    assert found(tmp_path, [recorded, passing(1, 0, "a"), passing(2, 0, "")]).rule.is_harmless
    spoilt = frame(0, 0, "batch", bad("value", "mask", nan=1), phase="manual")
    assert not found(tmp_path / "nan", [spoilt, passing(1, 0, "a"), passing(2, 0, "")]).rule.is_harmless


def test_a_place_that_absorbs_is_the_fault_when_it_lets_something_through(tmp_path: Path) -> None:
    # GIVEN a softmax that absorbs its mask in batch 0 and gives nan out in batch 1
    mask = bad("input", "input[0]", neginf=2)
    frames = [
        frame(0, 0, "softmax", mask, tensor("output", "output"), in_batch=0),
        passing(1, 0, ""),
        frame(2, 1, "softmax", mask, bad("output", "output", nan=2), in_batch=0),
        making(3, 1, ""),
    ]
    finding = found(tmp_path, frames)
    assert (finding.frame.frame_number, finding.entry.role) == (2, "output")


def test_a_nan_that_another_consumer_carries_on_is_not_absorbed(tmp_path: Path) -> None:
    frames = [making(0, 0, "a", in_batch=0), absorbing(1, 0, "b"), carrying(2, 0, "c"), making(3, 0, "")]
    assert found(tmp_path, frames).cause.name != "absorbed"


def test_a_nan_at_the_end_of_what_was_recorded_is_not_called_absorbed(tmp_path: Path) -> None:
    assert found(tmp_path, [passing(0, 0, "a", in_batch=0), making(1, 0, "b")]).cause.name != "absorbed"


def test_zeros_that_an_inf_divisor_leaves_are_not_called_absorbed(tmp_path: Path) -> None:
    zeros = tensor("output", "output", abs_min=0.0, abs_max=0.0, finite_abs_max=0.0)
    divide = frame(0, 0, "mean", bad("input", "input[1]", inf=1, shape=(1,)), zeros, in_batch=0)
    assert found(tmp_path, [divide, passing(1, 0, "")]).cause.name == "divisor-overflow"


def test_of_two_branches_the_first_nan_is_the_fault_while_nothing_shows_its_end(tmp_path: Path) -> None:
    # GIVEN two modules that both make a nan of finite values; what became of the first is not recorded
    frames = [making(0, 0, "left", in_batch=0), making(1, 0, "right"), carrying(2, 0, "join")]
    assert found(tmp_path, frames).frame.frame_number == 0


def test_a_bad_buffer_is_found_though_the_outputs_are_fine(tmp_path: Path) -> None:
    norm = frame(0, 0, "norm", bad("buffer", "running_var", nan=4), tensor("input", "x"), tensor("output", "output"))
    finding = found(tmp_path, [replace(norm, frame_in_batch=0), passing(1, 0, "")])
    assert (finding.entry.context, finding.cause.name) == ("running_var", "bad-buffer")


def test_a_recomputed_forward_repeats_the_first_and_is_left_out(tmp_path: Path) -> None:
    frames = [
        making(0, 0, "a", in_batch=0),
        absorbing(1, 0, "b"),
        passing(2, 0, ""),
        making(3, 0, "a", phase="recompute"),
        absorbing(4, 0, "b", phase="recompute"),
    ]
    assert found(tmp_path, frames).cause.name == "absorbed"


def test_a_nan_that_only_the_recomputed_forward_has_is_found(tmp_path: Path) -> None:
    frames = [passing(0, 0, "a", in_batch=0), passing(1, 0, ""), making(2, 0, "a", phase="recompute")]
    finding = found(tmp_path, frames)
    assert finding.frame.frame_number == 2
    assert finding.origin is finding.frame


# --- which part of the trace is looked at


def test_the_window_holds_the_last_frames_up_to_the_finding(tmp_path: Path) -> None:
    # GIVEN 30 frames, the 28th bad, and a recorder that keeps 21
    frames = [passing(number, 0, f"m{number}", in_batch=number) for number in range(30)]
    frames[27] = making(27, 0, "m27", in_batch=27)
    # WHEN / THEN: as many as the run kept, or as are asked for, across what batch it may be
    assert [one.frame_number for one in found(tmp_path, frames).window] == list(range(7, 28))


@pytest.mark.parametrize(("asked", "first"), [(1, 27), (3, 25), (1000, 0)])
def test_the_window_has_as_many_frames_as_asked_for(tmp_path: Path, asked: int, first: int) -> None:
    frames = [passing(number, 0, f"m{number}", in_batch=number) for number in range(30)]
    frames[27] = making(27, 0, "m27", in_batch=27)
    assert [one.frame_number for one in found(tmp_path, frames, window=asked).window] == list(range(first, 28))


def test_a_window_size_that_makes_no_sense_in_the_file_is_not_used(tmp_path: Path) -> None:
    run = with_options(max_frames_to_save="many")
    assert len(found(tmp_path, [making(0, 0, "a", in_batch=0)], run).window) == 1


def test_progress_is_told_of_what_may_hold_one(tmp_path: Path) -> None:
    # GIVEN four parts, of which the statistics prove the first two finite
    frames = [passing(0, 0, "a"), passing(1, 1, "a"), making(2, 2, "a"), carrying(3, 3, "a")]
    opened = open_trace(write_trace(tmp_path / "run.parquet", frames, frames_per_part=1))
    told: list[tuple[int, ...]] = []

    def progress(groups: Sequence[RowGroup]) -> Iterable[RowGroup]:
        told.append(tuple(group.first_batch for group in groups))
        return groups

    # WHEN the first is searched for, THEN only the others were to be read
    assert find_first_nonfinite(opened, progress=progress) is not None
    assert told == [(2, 3)]


def test_one_batch_can_be_asked_for(tmp_path: Path) -> None:
    frames = [making(0, 0, "a", in_batch=0), passing(1, 1, "a", in_batch=0), making(2, 2, "b", in_batch=0)]
    assert found(tmp_path, frames, batch=2).frame.frame_number == 2


def test_a_finite_batch_that_is_asked_for_has_no_finding(tmp_path: Path) -> None:
    assert find(tmp_path, [making(0, 0, "a", in_batch=0), passing(1, 1, "a", in_batch=0)], batch=1) is None


def test_a_batch_that_was_not_recorded_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(NotRecordedError, match="batch 7"):
        find(tmp_path, [making(0, 0, "a", in_batch=0)], batch=7)


# --- ranks


def ranks(path: Path, *frames: list[Frame]) -> Path:
    for rank, some in enumerate(frames):
        write_trace(path / "run.parquet", some, replace(RUN, rank=rank, world_size=len(frames)))
    return path / "run.parquet"


def test_over_ranks_the_earlier_batch_is_first_though_its_clock_is_later(tmp_path: Path) -> None:
    path = ranks(
        tmp_path,
        [passing(0, 0, "a", in_batch=0), making(1, 1, "a", in_batch=0, time_ns=1)],
        [making(0, 0, "b", in_batch=0, time_ns=999)],
    )
    finding = find_first_nonfinite(open_trace(path))
    assert finding is not None
    assert (finding.rank, finding.world_size, finding.frame.module_name) == (1, 2, "b")
    assert finding.other_ranks == (RankFinding(0, 1, 1, "a", "output", "output"),)


def test_over_ranks_in_one_batch_the_earlier_time_is_first(tmp_path: Path) -> None:
    path = ranks(tmp_path, [making(0, 0, "a", in_batch=0, time_ns=500)], [making(0, 0, "b", in_batch=0, time_ns=400)])
    finding = find_first_nonfinite(open_trace(path))
    assert finding is not None
    assert finding.rank == 1


def test_a_rank_that_absorbed_its_own_is_not_before_one_that_did_not(tmp_path: Path) -> None:
    path = ranks(
        tmp_path,
        [making(0, 0, "a", in_batch=0), absorbing(1, 0, "b"), passing(2, 0, "")],
        [passing(0, 0, "a", in_batch=0), making(1, 1, "a", in_batch=0), making(2, 1, "")],
    )
    finding = find_first_nonfinite(open_trace(path))
    assert finding is not None
    assert finding.rank == 1


def test_one_rank_can_be_asked_for_and_the_others_are_then_not_looked_at(tmp_path: Path) -> None:
    path = ranks(tmp_path, [making(0, 0, "a", in_batch=0)], [making(0, 0, "b", in_batch=0)])
    finding = find_first_nonfinite(open_trace(path), rank=0)
    assert finding is not None
    assert (finding.rank, finding.other_ranks) == (0, None)


def test_a_rank_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    path = ranks(tmp_path, [making(0, 0, "a", in_batch=0)])
    with pytest.raises(NotRecordedError, match="no rank 3"):
        find_first_nonfinite(open_trace(path), rank=3)
