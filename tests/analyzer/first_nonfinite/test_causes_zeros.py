"""Rules about zeros, functions that are not defined everywhere, and what goes nowhere."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tests.analyzer.findings import absorbing, bad, cause_of, making, only_cause, passing
from tests.traces import frame, tensor

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Entry


def zeros(role: Any, context: str, **changes: Any) -> Entry:
    return tensor(role, context, abs_min=0.0, abs_max=0.0, finite_abs_max=0.0, **changes)


# --- zeros


def test_zeros_in_and_nan_out_is_a_division(tmp_path: Path) -> None:
    cause = only_cause(tmp_path, "Normalize", zeros("input", "x"), bad("output", "output", nan=4))
    assert (cause.name, cause.confidence) == ("division-by-zero", "possible")


def test_a_weight_of_0_is_a_divisor_too(tmp_path: Path) -> None:
    entries = (zeros("weight", "tau"), tensor("input", "x"), bad("output", "output", inf=3, neginf=1))
    cause = only_cause(tmp_path, "Scores", *entries)
    assert (cause.name, cause.confidence) == ("division-by-zero", "possible")
    assert cause.evidence[0] == "tau is 0 everywhere (abs max 0.00e+00)"


def test_what_left_a_finite_element_was_not_a_division_by_zeros_everywhere(tmp_path: Path) -> None:
    cause = only_cause(tmp_path, "Add", zeros("input", "mask"), tensor("input", "x"), bad("output", "output", inf=1))
    assert "is 0 everywhere" not in cause.evidence[0]


def test_one_sample_has_no_deviation(tmp_path: Path) -> None:
    sample = tensor("input", "x", shape=(1, 4))
    cause = only_cause(tmp_path, "dialog", sample, bad("output", "output", nan=4, shape=(1, 4)))
    assert (cause.name, cause.confidence) == ("division-by-zero", "possible")
    assert "holds one sample" in cause.evidence[0]


def test_whole_rows_of_nan_and_inf_behind_zeros_are_a_division(tmp_path: Path) -> None:
    # GIVEN a row of 12 divided by the root of 0: 1 nan, 4 inf and 7 -inf of 192 elements
    entries = (
        tensor("input", "x", abs_min=0.0, shape=(16, 12)),
        bad("output", "output", nan=1, inf=4, neginf=7, shape=(16, 12)),
    )
    cause = only_cause(tmp_path, "Scale", *entries)
    assert (cause.name, cause.confidence) == ("division-by-zero", "possible")


def test_where_zeros_came_from_is_told(tmp_path: Path) -> None:
    relu = frame(0, 0, "relu", tensor("input", "x"), zeros("output", "output"), in_batch=0, module_class="ReLU")
    divide = frame(1, 0, "divide", zeros("input", "x"), bad("output", "output", nan=4))
    cause = cause_of(tmp_path, relu, divide)
    assert cause.name == "division-by-zero"
    assert "zeros of the same shape came out of relu (ReLU) before, in batch 0, frame 0" in cause.evidence


def test_products_that_vanished_before_are_an_underflow(tmp_path: Path) -> None:
    # GIVEN 1e-5 x 1e-4 = 1e-9, and the smallest float16 is 2**-24 = 5.96e-8: log2(5.96e-8 / 1e-9) = 5.9 bits
    small = tensor("input", "x", abs_max=1e-5)
    weight = tensor("weight", "weight", abs_max=1e-4)
    scale = frame(0, 0, "scale", weight, small, zeros("output", "output"), in_batch=0, module_class="Scale")
    divide = frame(1, 0, "divide", zeros("input", "x"), bad("output", "output", nan=4))
    cause = cause_of(tmp_path, scale, divide)
    assert (cause.name, cause.confidence) == ("underflow", "possible")
    assert math.log2(2.0**-24 / 1e-9) == pytest.approx(5.9, abs=0.05)
    assert (
        "the product with 1.00e-05 lies 5.9 bits below float16's smallest value, 5.96e-08, and becomes 0"
        in (cause.evidence[1])
    )


def test_in_float64_no_square_of_an_ordinary_figure_vanishes(tmp_path: Path) -> None:
    small = tensor("input", "x", abs_max=1e-100, dtype="float64")
    assert only_cause(tmp_path, "Normalize", small, bad("output", "output", nan=4, dtype="float64")).name != "underflow"


def test_a_float64_square_too_small_for_float64_itself_is_still_told(tmp_path: Path) -> None:
    tiny = tensor("input", "x", abs_max=1e-300, dtype="float64")
    cause = only_cause(tmp_path, "LayerNorm", tiny, bad("output", "output", inf=4, dtype="float64"))
    assert cause.name == "underflow"
    assert "919.2 bits below" in cause.evidence[1]  # 1e-600 is 2**-1993.16, the smallest value 2**-1074


def test_zeros_among_other_figures_are_only_possible(tmp_path: Path) -> None:
    some = tensor("input", "x", abs_min=0.0)
    cause = only_cause(tmp_path, "Reciprocal", some, bad("output", "output", inf=1))
    assert (cause.name, cause.confidence) == ("division-by-zero", "possible")


def test_one_magnitude_everywhere_is_a_variance_of_zero_in_a_norm(tmp_path: Path) -> None:
    same = tensor("input", "x", abs_min=2.0, abs_max=2.0)
    cause = only_cause(tmp_path, "MyLayerNorm", same, bad("output", "output", nan=4))
    assert (cause.name, cause.confidence) == ("division-by-zero", "possible")


def test_an_inf_divisor_that_is_no_single_element_is_only_possible(tmp_path: Path) -> None:
    divisor = bad("input", "input[1]", inf=4)
    cause = only_cause(tmp_path, "Mean", tensor("input", "input[0]"), divisor, zeros("output", "output"))
    assert (cause.name, cause.confidence) == ("divisor-overflow", "possible")


# --- functions that are not defined everywhere


def test_minus_inf_from_zeros_is_possibly_a_logarithm(tmp_path: Path) -> None:
    some = tensor("input", "x", abs_min=0.0)
    cause = only_cause(tmp_path, "Head", some, bad("output", "output", neginf=1))
    assert (cause.name, cause.confidence) == ("out-of-domain", "possible")


@pytest.mark.parametrize(("zero_count", "is_said"), [(1, True), (2, False)])
def test_as_many_zeros_as_minus_inf_are_told(tmp_path: Path, zero_count: int, is_said: bool) -> None:
    some = tensor("input", "x", abs_min=0.0, zero_count=zero_count)
    cause = only_cause(tmp_path, "Head", some, bad("output", "output", neginf=1))
    # THEN they are no proof: -1/0 is -inf too
    assert cause.confidence == "possible"
    assert ("it holds 1 zeros: one for each -inf" in cause.evidence) == is_said


def test_nan_from_ordinary_figures_does_not_claim_a_sign(tmp_path: Path) -> None:
    cause = only_cause(tmp_path, "Head", tensor("input", "x"), bad("output", "output", nan=1))
    assert (cause.name, cause.confidence) == ("out-of-domain", "possible")
    assert "a trace holds magnitudes, not signs" in cause.evidence[-1]


@pytest.mark.parametrize("module_class", ["Sqrt", "Dialog", "LogSoftmax"])
def test_the_name_of_a_module_is_no_evidence(tmp_path: Path, module_class: str) -> None:
    cause = only_cause(tmp_path, module_class, tensor("input", "x"), bad("output", "output", nan=1))
    assert cause.confidence == "possible"


def test_a_module_with_others_inside_is_not_reduced_to_one_function(tmp_path: Path) -> None:
    # GIVEN zeros inside a block that gives nan out: a division inside would do it too
    inner = frame(0, 0, "block.relu", tensor("input", "x"), tensor("output", "output", abs_min=0.0), in_batch=0)
    assert cause_of(tmp_path, inner, making(1, 0, "block")).name == "unknown"


# --- what goes nowhere


def test_a_mask_that_is_absorbed_is_told_how_to_be_ignored(tmp_path: Path) -> None:
    mask = bad("input", "input[mask]", neginf=2)
    attention = frame(0, 0, "layer.attention", mask, tensor("output", "output"), in_batch=0)
    cause = cause_of(tmp_path, attention, passing(1, 0, ""))
    assert cause.name == "absorbed"
    assert 'ignore=("layer.attention:input[mask]",)' in cause.next_step
    assert "it is -inf alone, which is consistent with a mask" in cause.evidence


def test_an_absorption_that_only_a_consumer_shows_is_possible(tmp_path: Path) -> None:
    cause = cause_of(tmp_path, making(0, 0, "a", in_batch=0), absorbing(1, 0, "b"))
    assert (cause.name, cause.confidence) == ("absorbed", "possible")


def test_a_consumer_whose_output_was_not_recorded_absorbs_nothing(tmp_path: Path) -> None:
    # GIVEN modules of which only the inputs were recorded
    frames = [frame(at, 0, name, bad("input", "x", nan=1), in_batch=at) for at, name in enumerate(("fc", ""))]
    assert cause_of(tmp_path, *frames).name == "bad-batch"
