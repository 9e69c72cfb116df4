"""Pairs of recorded runs, each with what sets them apart by construction (``fixtures/diff-*/make.py``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from overflow_analyzer.diff import Tolerance, diff_traces
from tests.analyzer.diffing import recorded_pair

if TYPE_CHECKING:
    from overflow_analyzer.diff import Divergence, TraceDiff

FIRST = {
    # pair -> kind, batch, module, entry
    "other-seed": ("weight", 0, "0", "weight"),
    "weight-perturbed": ("weight", 0, "2", "weight"),
    "update-skipped": ("weight", 2, "0", "weight"),
    "activation-flipped": ("module", 2, "2", "output"),
    "other-data": ("input", 1, "0", "input[0]"),
    "layer-added": ("structure", 0, "norm.scale", ""),
    "not-a-number": ("module", 2, "2", "output"),
}
SAME = (
    "same-seed",
    "float32-bfloat16",
    "float32-float16",
    "compiled",
    "distributed-wrapper",
    "module-renamed",
    "sampled",
    "ranks",
    "checkpointed",
)


def diff(name: str, **options: object) -> TraceDiff:
    return diff_traces(*recorded_pair(name), **options)  # type: ignore[arg-type]


def first_of(name: str) -> Divergence:
    first = diff(name).first_divergence
    assert first is not None
    return first


@pytest.mark.parametrize("name", FIRST)
def test_first_divergence_is_the_one_that_was_made(name: str) -> None:
    # GIVEN a pair of runs, WHEN they are compared
    compared = diff(name)
    first = compared.first_divergence

    # THEN the first divergence is where the second run was made to differ
    assert not compared.same
    assert first is not None
    assert (first.kind, first.batch_number, first.module_name, first.context) == FIRST[name]


@pytest.mark.parametrize("name", SAME)
def test_runs_that_compute_the_same_do_not_differ(name: str) -> None:
    compared = diff(name)
    assert compared.same
    assert compared.first_divergence is None
    assert compared.differences == ()
    assert compared.compared.entries > 0


@pytest.mark.parametrize("name", [*FIRST, *SAME])
def test_a_run_does_not_differ_from_itself(name: str) -> None:
    for trace in recorded_pair(name):
        itself = diff_traces(trace, trace, tolerance=Tolerance(exact=True))
        assert itself.same
        assert (itself.only_in_a, itself.only_in_b, itself.structure, itself.differences) == ((), (), (), ())


@pytest.mark.parametrize("name", ["same-seed", "compiled", "distributed-wrapper", "ranks", "checkpointed"])
def test_the_same_bit_for_bit(name: str) -> None:
    compared = diff(name, tolerance=Tolerance(exact=True))
    assert compared.same
    assert compared.compared.tolerated == 0


def test_weights_were_equal_before_the_flipped_activation() -> None:
    first = first_of("activation-flipped")
    assert first.exact_before
    assert first.weights_before == 2 * 6 + 2  # two batches of three Linears with weight and bias, and one more Linear
    assert first.compared_batch_before == 1


def test_growth_begins_with_the_flipped_activation() -> None:
    growth = {point.batch_number: point for point in diff("activation-flipped").growth}
    assert [growth[batch].epsilons for batch in (0, 1)] == [0, 0]
    assert growth[2].entries > 0 < growth[3].entries


def test_the_skipped_update_is_told_by_its_batch() -> None:
    first = first_of("update-skipped")
    assert first.compared_batch_before == 1
    assert first.exact_before


def test_nan_outranks_the_drift_before_it() -> None:
    compared = diff("not-a-number")
    first, earlier = compared.first_divergence, compared.first_difference
    assert first is not None
    assert earlier is not None
    assert first.nonfinite_in == "b"
    assert (earlier.kind, earlier.batch_number, earlier.module_name, earlier.context) == ("weight", 1, "2", "bias")


def test_the_added_layer_is_named_with_the_module_it_is_part_of() -> None:
    compared = diff("layer-added")
    first = compared.first_divergence
    assert first is not None
    assert (first.only_in, first.part_of) == ("b", "norm")
    assert {(one.module_name, one.reason) for one in compared.only_in_b} == {
        ("norm.scale", "structure"),
        ("norm", "structure"),
    }
    assert compared.only_in_a == ()


@pytest.mark.parametrize(("name", "wrapper"), [("compiled", "_orig_mod"), ("distributed-wrapper", "module")])
def test_wrappers_are_stripped(name: str, wrapper: str) -> None:
    alignment = diff(name).alignment
    assert {(pair.a, pair.b, pair.matched_by) for pair in alignment.weaker} == {
        ("0", f"{wrapper}.0", "wrapper"),
        ("1", f"{wrapper}.1", "wrapper"),
        ("2", f"{wrapper}.2", "wrapper"),
        ("", wrapper, "wrapper"),
    }
    assert (alignment.wrappers_a, alignment.wrappers_b) == ((), ("",))


def test_the_renamed_module_is_found_by_its_place() -> None:
    compared = diff("module-renamed")
    assert [(pair.a, pair.b, pair.matched_by) for pair in compared.alignment.weaker] == [
        ("second", "middle", "sequence")
    ]
    assert (compared.only_in_a, compared.only_in_b) == ((), ())


def test_a_sampled_trace_is_compared_where_it_has_something() -> None:
    compared = diff("sampled")
    # Of eight batches B has every third, and of the last one the two frames of its window.
    assert compared.compared.batches == 4
    assert {(one.reason, one.batches, one.module_name) for one in compared.only_in_a} == {
        ("batch", 4, None),
        ("window", None, "0"),
        ("window", None, "1"),
    }
    assert compared.only_in_b == ()


def test_a_rank_of_one_run_alone_is_listed() -> None:
    compared = diff("ranks")
    assert compared.alignment.ranks == ((0, 0),)
    assert [(one.reason, one.rank, one.frames) for one in compared.only_in_b] == [("rank", 1, 8)]


def test_recomputed_frames_are_listed_and_gradients_still_matched() -> None:
    compared = diff("checkpointed")
    assert {one.reason for one in compared.only_in_b} == {"recompute"}
    assert compared.only_in_a == ()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_coarser_dtype_is_listed_and_judges(dtype: str) -> None:
    # GIVEN one run in float32 and one in a coarser dtype, which differ by rounding alone
    structure = diff(f"float32-{dtype}").structure
    assert [(one.what, one.a, one.b, one.entries) for one in structure] == [("dtype", "float32", dtype, 44)]

    # WHEN float32's epsilon judges, THEN they differ
    assert not diff(f"float32-{dtype}", tolerance=Tolerance(rtol=1e-6)).same
