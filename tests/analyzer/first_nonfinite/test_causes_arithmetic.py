"""Rules about operations claim what the recorded figures support, and nothing where they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.analyzer.findings import bad, cause_of, only_cause
from tests.traces import frame, tensor

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Entry, Frame


LIMIT = 65504.0


# --- overflow


def test_inf_beside_figures_near_the_limit_is_possibly_an_overflow(tmp_path: Path) -> None:
    # GIVEN what 1 / (x - 5) and masked_fill leave, too
    cause = only_cause(tmp_path, "Gate", tensor("input", "input[0]", abs_max=40000.0), bad("output", "output", inf=1))
    assert (cause.name, cause.confidence) == ("overflow", "possible")
    assert cause.evidence[0] == "input[0]: 4.00e+04 is 61.1% of float16's 65504"  # 40000 / 65504 = 0.61065


def test_nan_beside_figures_near_the_limit_is_possibly_one(tmp_path: Path) -> None:
    cause = only_cause(tmp_path, "Gate", tensor("input", "input[0]", abs_max=40000.0), bad("output", "output", nan=1))
    assert (cause.name, cause.confidence) == ("overflow", "possible")


def test_the_finite_part_of_the_bad_tensor_counts_too(tmp_path: Path) -> None:
    cause = only_cause(
        tmp_path, "Gate", tensor("input", "input[0]"), bad("output", "output", inf=1, finite_abs_max=65000.0)
    )
    assert cause.evidence[0] == "output: 6.50e+04 is 99.2% of float16's 65504"  # 65000 / 65504 = 0.99231


def linear(weight: float, value: float, **changes: Any) -> tuple[Entry, ...]:
    return (
        tensor("weight", "weight", abs_max=weight, shape=(8, 64), numel=8 * 64),
        tensor("input", "input[0]", abs_min=0.0, abs_max=value, shape=(4, 64)),
        bad("output", "output", inf=1, shape=(4, 8), **changes),
    )


def test_a_matrix_product_whose_sums_can_reach_the_limit_overflowed(tmp_path: Path) -> None:
    # GIVEN rows of 64 products of up to 4 x 300 = 1200: 76800 in all
    cause = only_cause(tmp_path, "Anything", *linear(4.0, 300.0))
    assert (cause.name, cause.confidence) == ("overflow", "likely")
    assert "a sum of 64 products of up to 4.00e+00 x 3.00e+02 can reach 7.68e+04" in cause.evidence


def test_a_matrix_product_whose_sums_cannot_reach_the_limit_did_not(tmp_path: Path) -> None:
    # GIVEN 64 x 4 x 200 = 51200, which float16 holds
    assert only_cause(tmp_path, "Linear", *linear(4.0, 200.0)).name != "overflow"


def test_a_square_that_does_not_fit_is_possible(tmp_path: Path) -> None:
    cause = only_cause(tmp_path, "RMSNorm", tensor("input", "x", abs_max=300.0), bad("output", "output", inf=1))
    assert (cause.name, cause.confidence) == ("overflow", "possible")
    assert "its square, 9.00e+04, does not fit float16's 65504" in cause.evidence[0]


def test_a_square_beyond_every_format_does_not_fit_either(tmp_path: Path) -> None:
    # GIVEN a float64 whose square Python's own floats do not hold
    entries = (
        tensor("input", "input[0]", abs_max=1e200, dtype="float64"),
        bad("output", "output", nan=1, dtype="float64"),
    )
    cause = only_cause(tmp_path, "Norm", *entries)
    assert "its square, inf, does not fit float64's 1.79769e+308" in cause.evidence[0]


def test_an_exponential_that_does_not_fit_is_possible_whatever_the_module_is_called(tmp_path: Path) -> None:
    entries = (tensor("input", "x", abs_max=20.0), bad("output", "output", inf=1))
    causes = [only_cause(tmp_path / name, name, *entries) for name in ("Exp", "Gate")]
    assert causes[0].evidence == causes[1].evidence
    assert (causes[0].name, causes[0].confidence) == ("overflow", "possible")
    assert causes[0].evidence[0].startswith("x has an abs max of 2.00e+01: exp of more than 11.1")


def test_beside_a_zero_an_overflow_is_only_possible(tmp_path: Path) -> None:
    # GIVEN figures near the limit, and a 0 that may have been divided by
    entries = (tensor("input", "x", abs_min=0.0, abs_max=40000.0), bad("output", "output", inf=1))
    cause = only_cause(tmp_path, "Gate", *entries)
    assert (cause.name, cause.confidence) == ("overflow", "possible")


def test_a_mask_is_no_evidence_of_an_overflow(tmp_path: Path) -> None:
    mask = tensor("input", "mask", abs_min=0.0, abs_max=LIMIT)
    entries = (tensor("input", "x"), mask, bad("output", "output", inf=2, neginf=2))
    assert only_cause(tmp_path, "Scores", *entries).name != "overflow"


def test_figures_of_another_format_are_not_held_against_the_limit(tmp_path: Path) -> None:
    # GIVEN token numbers of 60000 beside a float16 inf
    tokens = tensor("input", "ids", abs_max=60000.0, dtype="int64")
    assert only_cause(tmp_path, "Gate", tokens, bad("output", "output", inf=1)).name == "unknown"


def test_a_format_without_inf_overflows_to_nan(tmp_path: Path) -> None:
    near = tensor("input", "x", abs_max=440.0, dtype="float8_e4m3fn")
    cause = only_cause(tmp_path, "Cast", near, bad("output", "output", nan=1, dtype="float8_e4m3fn"))
    assert (cause.name, cause.confidence) == ("overflow", "possible")
    assert "float8_e4m3fn's 448" in cause.evidence[0]


def test_float32_has_no_wider_format_to_go_to(tmp_path: Path) -> None:
    large = tensor("input", "x", abs_max=3e38, dtype="float32")
    cause = only_cause(tmp_path, "Gate", large, bad("output", "output", inf=1, dtype="float32"))
    assert "bfloat16" not in cause.next_step
    assert cause.next_step.startswith("To try: ")  # no second run has tried it


def test_growth_over_batches_is_told_in_bits(tmp_path: Path) -> None:
    # GIVEN an output that doubles twice a batch: 2, 8, 32, 128
    def batch(number: int, value: float) -> Frame:
        entries = (
            tensor("input", "x", abs_max=50000.0),
            tensor("output", "output", abs_max=value),
        )
        return frame(number, number, "m", *entries, in_batch=0)

    frames = [batch(number, 2.0 * 4**number) for number in range(4)]
    last = frame(4, 4, "m", tensor("input", "x", abs_max=50000.0), bad("output", "output", inf=1), in_batch=0)
    cause = cause_of(tmp_path, *frames, last)
    assert "output had an abs max of 2.00e+00 in batch 0 and 1.28e+02 in batch 3: 2 bits a batch" in cause.evidence


# --- casts


def test_a_wider_value_that_does_not_fit_was_cast(tmp_path: Path) -> None:
    wide = tensor("input", "x", abs_max=7e4, dtype="float32")
    cause = only_cause(tmp_path, "Linear", wide, bad("output", "output", inf=1))
    assert (cause.name, cause.confidence) == ("precision-cast", "likely")
    assert cause.evidence[0] == "x is float32: 7.00e+04 is 106.9% of float16's 65504"  # 70000 / 65504 = 1.06864
    assert cause.evidence[2] == "both have the shape [4] and an abs min of 5.00e-01"


@pytest.mark.parametrize("changes", [{"abs_min": 0.25}, {"shape": (2, 2)}])
def test_a_wider_value_behind_other_arithmetic_is_only_possibly_the_cast(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    # GIVEN a float32 norm of something large, whose result is cast and has overflowed for another reason
    wide = tensor("input", "x", abs_max=7e4, dtype="float32")
    cause = only_cause(tmp_path, "Norm", wide, bad("output", "output", inf=1, **changes))
    assert (cause.name, cause.confidence) == ("precision-cast", "possible")


def test_a_wider_value_that_fits_was_not_the_cast(tmp_path: Path) -> None:
    wide = tensor("input", "x", abs_max=100.0, dtype="float32")
    assert only_cause(tmp_path, "Gate", wide, bad("output", "output", inf=1)).name != "precision-cast"


def test_between_modules_the_output_before_is_what_was_cast(tmp_path: Path) -> None:
    wide = tensor("output", "output", abs_max=7e4, dtype="float32")
    cause = cause_of(
        tmp_path, frame(0, 0, "sum", wide, in_batch=0), frame(1, 0, "next", bad("input", "input[0]", inf=1))
    )
    # THEN the shape and the least magnitude are the same, as a cast leaves them
    assert (cause.name, cause.confidence) == ("precision-cast", "likely")
    assert cause.evidence[0].startswith("output of sum (Linear) is float32")


# --- masks


def test_one_mask_at_the_limit_needs_something_that_pushes_it_over(tmp_path: Path) -> None:
    # GIVEN float16, whose largest values are 32 apart: 16 more is what rounds to inf
    mask = tensor("input", "mask", abs_max=LIMIT)
    entries = (mask, tensor("input", "scores", abs_max=16.0), bad("output", "output", neginf=1))
    cause = only_cause(tmp_path, "Add", *entries)
    assert (cause.name, cause.confidence) == ("masks-added", "possible")


def test_smaller_scores_do_not(tmp_path: Path) -> None:
    mask = tensor("input", "mask", abs_max=LIMIT)
    entries = (mask, tensor("input", "scores", abs_max=15.0), bad("output", "output", neginf=1))
    assert only_cause(tmp_path, "Add", *entries).name != "masks-added"


def test_a_positive_inf_is_no_sum_of_masks(tmp_path: Path) -> None:
    mask = tensor("input", "mask", abs_max=LIMIT)
    assert only_cause(tmp_path, "Add", mask, mask, bad("output", "output", inf=1)).name == "unknown"


def softmax(neginf: int, nan: int, module_class: str = "Softmax") -> tuple[Frame, Frame]:
    shape = (2, 5)
    entries = (bad("input", "input[0]", neginf=neginf, shape=shape), bad("output", "output", nan=nan, shape=shape))
    made = frame(0, 0, "s", *entries, in_batch=0, module_class=module_class)
    return made, frame(1, 0, "", tensor("input", "x"), bad("output", "output", nan=1))


def test_so_many_minus_inf_that_a_row_is_full_are_a_masked_row(tmp_path: Path) -> None:
    # GIVEN 9 -inf in 2 rows of 5: without a full row there are 8 at most
    cause = cause_of(tmp_path, *softmax(9, 5))
    assert (cause.name, cause.confidence) == ("masked-row-softmax", "likely")
    assert "so many that a whole row of them is certain" in cause.evidence[0]
    assert cause.evidence[-1] == "the nan fill 1 whole row of 5"


def test_where_some_minus_inf_gave_no_nan_no_function_of_each_element_did_it(tmp_path: Path) -> None:
    # GIVEN 7 -inf of which 5 became nan: a logarithm or a root would have made 7
    assert cause_of(tmp_path, *softmax(7, 5)).confidence == "likely"


def test_a_nan_for_each_minus_inf_is_only_possibly_a_masked_row(tmp_path: Path) -> None:
    assert cause_of(tmp_path, *softmax(5, 5)).confidence == "possible"


def test_too_few_for_a_row_is_not_it(tmp_path: Path) -> None:
    assert cause_of(tmp_path, *softmax(4, 5)).name != "masked-row-softmax"


def test_nan_that_fill_no_rows_are_not_it(tmp_path: Path) -> None:
    assert cause_of(tmp_path, *softmax(9, 4)).name != "masked-row-softmax"


@pytest.mark.parametrize("module_class", ["Sort", "SelfAttention"])
def test_what_the_module_is_called_does_not_matter(module_class: str, tmp_path: Path) -> None:
    softmaxes = [cause_of(tmp_path / one, *softmax(9, 5, one)).confidence for one in ("Softmax", module_class)]
    assert softmaxes == ["likely", "likely"]


def test_a_product_of_minus_inf_and_0_is_no_masked_row(tmp_path: Path) -> None:
    # GIVEN 6 rows of 5 with 12 -inf: two of them are masked whole at most, and each of the 6 sums is nan
    scores = bad("input", "x", neginf=12, shape=(6, 5))
    targets = tensor("input", "t", abs_min=0.0, shape=(6, 5))
    loss = frame(0, 0, "loss", scores, targets, bad("output", "output", nan=6, shape=(6,)), in_batch=0)
    root = frame(1, 0, "", tensor("input", "x"), bad("output", "output", nan=6, shape=(6,)))
    cause = cause_of(tmp_path, loss, root)
    assert (cause.name, cause.confidence) == ("zero-times-inf", "possible")
