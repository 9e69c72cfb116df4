"""``diff_traces`` as a whole: ranks, what of the traces is compared, what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overflow_analyzer.diff import Rename, TraceDiff, diff_traces
from overflow_analyzer.errors import NotRecordedError
from overflow_analyzer.format.run_info import EndInfo
from tests.analyzer.diffing import MODULES, changed, compare, trace_of, training
from tests.traces import RUN

INF = float("inf")
COUNT = len(MODULES)


def test_the_earliest_rank_has_the_first_divergence() -> None:
    frames = training(3)
    late, early = changed(frames, 14, 2, abs_max=50.0), changed(frames, 9, 2, abs_max=50.0)
    diff = diff_traces(trace_of(frames, frames, frames), trace_of(frames, late, early))
    first = diff.first_divergence
    assert first is not None
    assert (first.rank, first.rank_b, first.batch_number, first.frame_number_a) == (2, 2, 1, 9)
    assert diff.alignment.ranks == ((0, 0), (1, 1), (2, 2))
    assert {(one.module_name, one.rank) for one in diff.differences} == {(MODULES[2], 1), (MODULES[3], 2)}


def test_inf_on_a_later_rank_outranks_a_difference_on_an_earlier_one() -> None:
    frames = training(3)
    drift = changed(frames, 0, 0, abs_max=50.0)
    burst = changed(frames, 14, 2, abs_max=INF, finite_abs_max=1.0, posinf_count=1)
    diff = diff_traces(trace_of(frames, frames), trace_of(drift, burst))
    assert diff.first_divergence is not None
    assert diff.first_difference is not None
    assert (diff.first_divergence.rank, diff.first_divergence.nonfinite_in) == (1, "b")
    assert (diff.first_difference.rank, diff.first_difference.kind) == (0, "weight")


def test_single_ranks_are_laid_beside_each_other_whatever_their_numbers() -> None:
    frames = training(1)
    second = trace_of(frames, frames)
    only_second = replace(second, ranks=second.ranks[1:])
    diff = diff_traces(trace_of(frames), only_second)
    assert diff.same
    assert diff.alignment.ranks == ((0, 1),)


def test_without_a_common_rank_nothing_is_compared() -> None:
    three = trace_of(*[training(1)] * 3)
    diff = diff_traces(replace(three, ranks=three.ranks[:1]), replace(three, ranks=three.ranks[1:]))
    assert not diff.same
    assert diff.nothing_compared == "no rank is in both: A has rank 0, B has ranks 1, 2"
    assert [one.rank for one in diff.only_in_b] == [1, 2]


@pytest.mark.parametrize(("a", "b", "where"), [(0, 1, "A"), (1, 0, "B"), (0, 0, "either")])
def test_a_rank_without_rows_has_nothing_to_compare(a: int, b: int, where: str) -> None:
    diff = diff_traces(trace_of(training(a)), trace_of(training(b)))
    assert not diff.same
    assert diff.nothing_compared == f"nothing is recorded in {where}"


def test_one_rank_alone() -> None:
    frames = training(1)
    a, b = trace_of(frames, frames), trace_of(changed(frames, 0, 0, abs_max=9.0), frames)
    assert diff_traces(a, b, rank=1).same
    assert not diff_traces(a, b, rank=0).same
    with pytest.raises(NotRecordedError, match="neither trace has a rank 2"):
        diff_traces(a, b, rank=2)


def test_one_batch_alone() -> None:
    frames = training(3)
    other = changed(frames, 1, 2, abs_max=9.0)
    alone = compare(frames, other, batch=1)
    assert alone.same
    assert (alone.compared.batches, alone.compared.frames) == (1, COUNT)
    assert (alone.only_in_a, alone.only_in_b) == ((), ())
    assert not compare(frames, other, batch=0).same
    with pytest.raises(NotRecordedError, match="batch 3 is in neither"):
        compare(frames, other, batch=3)


def test_one_batch_of_shifted_runs_is_named_by_as_number() -> None:
    frames = training(3)
    later = [replace(one, batch_number=one.batch_number + 10) for one in changed(frames, 7, 2, abs_max=9.0)]
    first = compare(frames, later, batch=1, offset=10).first_divergence
    assert first is not None
    assert (first.batch_number, first.batch_number_b) == (1, 11)


@pytest.mark.parametrize(("pattern", "same"), [("block.fc?", False), ("block.*", False), ("embed", True), ("", True)])
def test_some_modules_alone(pattern: str, same: bool) -> None:
    frames = training(1)
    diff = compare(frames, changed(frames, 3, 2, abs_max=9.0), module=pattern)
    assert diff.same == same
    assert diff.compared.entries > 0


def test_a_module_that_neither_run_has_is_refused() -> None:
    with pytest.raises(NotRecordedError, match=r"no module in either trace is called fc\*"):
        compare(training(1), training(1), module="fc*")


def test_a_map_lays_renamed_modules_beside_each_other() -> None:
    other = tuple(f"model.{name}" if name else "model" for name in MODULES)
    diff = compare(training(2), training(2, other), renames=["*=model.*"])
    assert diff.same
    assert {pair.matched_by for pair in diff.alignment.weaker} == {"map"}
    assert compare(training(2, other), training(2), renames=[Rename("*", "model.*").reversed()]).same


def test_modules_that_are_all_renamed_are_found_by_their_sequence() -> None:
    other = tuple(f"part{place}" for place in range(COUNT))
    diff = compare(training(2), training(2, other))
    assert diff.same
    assert [pair.matched_by for pair in diff.alignment.weaker] == ["sequence"] * COUNT


def test_models_without_anything_in_common() -> None:
    other = [replace(one, module_name=f"x{one.module_name}", module_class="Conv") for one in training(1)]
    diff = compare(training(1), other)
    assert not diff.same
    assert diff.nothing_compared is not None
    assert "no module is in both" in diff.nothing_compared
    assert diff.first_divergence is None
    assert [{one.module_name for one in side} for side in (diff.only_in_a, diff.only_in_b)] == [
        set(MODULES),
        {f"x{name}" for name in MODULES},
    ]


def test_growth_is_the_largest_difference_of_each_batch() -> None:
    frames = other = training(4)
    for batch in (2, 3):
        at = batch * COUNT + 1
        size = frames[at].entries[2].abs_max or 0.0
        other = changed(other, at, 2, abs_max=size * (1 - batch / 10))
    growth = compare(frames, other).growth
    assert [(one.batch_number, one.relative, one.entries) for one in growth] == [
        (0, 0.0, 0),
        (1, 0.0, 0),
        (2, pytest.approx(0.2), 1),
        (3, pytest.approx(0.3), 1),
    ]
    assert growth[2].epsilons == pytest.approx(0.2 * 2**10)


def test_modules_are_ranked_by_their_largest_difference_and_say_when_it_began() -> None:
    frames = training(3)
    other = changed(changed(frames, 2, 2, abs_max=3.0), 14, 1, abs_max=1e4)
    other = changed(other, 8, 2, abs_max=2.4)
    ranked = compare(frames, other).differences
    assert [(one.module_name, one.first_batch, one.batch_number, one.last_batch, one.entries) for one in ranked] == [
        ("block.act", 0, 2, 2, 3)
    ]
    assert (ranked[0].context, ranked[0].first_context) == ("input[0]", "output")


def test_frames_around_the_divergence_stand_side_by_side_with_marks() -> None:
    frames = training(2)
    around = compare(frames, changed(frames, 9, 2, abs_max=50.0)).around
    assert [pair.a.frame_number for pair in around if pair.a is not None] == [7, 8, 9, 10]
    assert [pair.differing for pair in around] == [
        frozenset(),
        frozenset(),
        frozenset({("output", "output")}),
        frozenset(),
    ]


def test_what_could_not_be_read_and_how_runs_ended_is_noted() -> None:
    frames = training(1)
    end = EndInfo("detected", 0, batch_number=0, reason="inf in embed")
    detected = trace_of(frames, run=replace(RUN, end=end), ended="detected")
    damaged = replace(trace_of(frames), lost=("rank=1: damaged",))
    assert diff_traces(detected, damaged).notes == (
        "A: rank 0 was stopped at an inf/nan in batch 0 (inf in embed)",
        "B: could not be read: rank=1: damaged",
    )


def test_what_is_importable() -> None:
    assert isinstance(compare(training(1), training(1)), TraceDiff)
