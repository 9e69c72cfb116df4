"""What is rounding and what is not. Epsilons are written out: float32 2**-23, bfloat16 2**-7, float16 2**-10."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from overflow_analyzer.diff import Tolerance
from tests.analyzer.diffing import changed, compare, training
from tests.traces import frame, tensor

if TYPE_CHECKING:
    from overflow_analyzer.diff import TraceDiff
    from overflow_analyzer.format.frames import Frame

INF, NAN = math.inf, math.nan
MANY: dict[str, Any] = {"shape": (1 << 20,), "numel": 1 << 20}
"""So many elements that their number makes no difference."""


def one(dtype: str = "float32", role: str = "output", **figures: Any) -> list[Frame]:
    """A run of one frame with one entry."""
    figures.setdefault("finite_abs_max", figures.get("abs_max", 2.0))
    return [frame(0, 0, "fc", tensor(role, role, **{"dtype": dtype, **figures}), in_batch=0)]


def apart(relative: float, dtype_a: str, dtype_b: str, **options: Any) -> TraceDiff:
    """Compare two entries whose largest magnitudes differ by ``relative``."""
    return compare(one(dtype_a, abs_max=1.0), one(dtype_b, abs_max=1.0 - relative), **options)


@pytest.mark.parametrize(
    ("dtype_a", "dtype_b", "tolerated"),
    [
        ("float64", "float64", 4 * 2**-52),
        ("float32", "float32", 4 * 2**-23),
        ("float16", "float16", 2 * 2**-10),
        ("bfloat16", "bfloat16", 2 * 2**-7),
        ("float32", "bfloat16", 2 * 2**-7),
        ("float16", "float32", 2 * 2**-10),
        ("bfloat16", "float16", 2 * 2**-7),
        ("float8_e4m3fn", "float32", 2 * 2**-3),
        ("complex64", "float32", 4 * 2**-23),
        ("int64", "bfloat16", 2 * 2**-7),
    ],
)
def test_the_coarser_dtype_judges(dtype_a: str, dtype_b: str, tolerated: float) -> None:
    for a, b in ((dtype_a, dtype_b), (dtype_b, dtype_a)):
        assert apart(tolerated * 0.99, a, b).same
        assert not apart(tolerated * 1.3, a, b).same


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8", "float99"])
def test_what_is_no_float_must_be_equal(dtype: str) -> None:
    assert apart(0.0, dtype, dtype).same
    assert not apart(2**-30, dtype, dtype).same


def test_distance_is_relative_and_in_epsilons_of_the_coarser_dtype() -> None:
    first = apart(0.25, "float32", "bfloat16").first_divergence
    assert first is not None
    assert first.largest is not None
    assert (first.largest.figure, first.largest.a, first.largest.b) == ("abs_max", 1.0, 0.75)
    assert (first.largest.relative, first.largest.epsilons, first.largest.tolerated_epsilons) == (0.25, 32.0, 2.0)


@pytest.mark.parametrize("figure", ["abs_mean", "rms", "finite_abs_max"])
def test_every_figure_counts(figure: str) -> None:
    values: list[dict[str, Any]] = [{"abs_max": 2.0, figure: value} for value in (1.0, 1.5)]
    first = compare(one(**values[0]), one(**values[1])).first_divergence
    assert first is not None
    assert first.largest is not None
    assert first.largest.figure == figure
    assert first.largest.relative == pytest.approx(1 / 3)


def test_the_least_magnitude_is_judged_on_the_scale_of_the_largest() -> None:
    # GIVEN a tensor whose least magnitude is what cancellation left
    assert compare(one(abs_min=1e-9, abs_max=1.0), one(abs_min=3e-8, abs_max=1.0)).same
    assert not compare(one(abs_min=1e-9, abs_max=1e-8), one(abs_min=3e-9, abs_max=1e-8)).same


def test_underflow_to_zero_is_rounding_below_the_smallest_subnormal() -> None:
    tiny: dict[str, Any] = {"abs_min": 0.0, "abs_max": 2.0**-25}
    assert compare(one("float32", **tiny), one("float16", abs_min=0.0, abs_max=0.0)).same
    assert not compare(one("float32", **tiny), one("float32", abs_min=0.0, abs_max=0.0)).same


@pytest.mark.parametrize(
    ("a", "b", "agree"),
    [
        ({"abs_max": NAN, "abs_min": NAN, "nan_count": 3}, {"abs_max": NAN, "abs_min": NAN, "nan_count": 3}, True),
        ({"abs_max": NAN, "abs_min": NAN, "nan_count": 3}, {"abs_max": NAN, "abs_min": NAN, "nan_count": 4}, False),
        ({"abs_max": INF, "posinf_count": 1}, {"abs_max": INF, "posinf_count": 1}, True),
        ({"abs_max": INF, "posinf_count": 1}, {"abs_max": INF, "neginf_count": 1}, False),
        ({"abs_max": NAN, "abs_min": NAN, "nan_count": 1}, {"abs_max": INF, "posinf_count": 1}, False),
    ],
)
def test_nan_equals_nan_and_inf_equals_inf_of_the_same_sign(a: dict[str, Any], b: dict[str, Any], agree: bool) -> None:
    diff = compare(one(finite_abs_max=1.0, **a), one(finite_abs_max=1.0, **b))
    assert diff.same == agree
    if diff.first_divergence is not None:
        assert diff.first_divergence.nonfinite_in is None  # both runs have what is not finite here


def test_inf_in_one_run_alone_is_told_by_its_run() -> None:
    a, b = one(abs_max=1.0), one(abs_max=INF, finite_abs_max=1.0, posinf_count=1)
    for pair, run in (((a, b), "b"), ((b, a), "a")):
        first = compare(*pair).first_divergence
        assert first is not None
        assert first.nonfinite_in == run


def test_an_intended_infinity_is_an_ordinary_difference() -> None:
    # GIVEN a mask of -inf that the recorder was told to ignore, where the other run has the dtype's minimum
    mask = one(abs_max=INF, finite_abs_max=1.0, neginf_count=4, note="ignored")
    first = compare(mask, one(abs_max=65504.0)).first_divergence
    assert first is not None
    assert first.nonfinite_in is None


def test_zeros_are_counted_exactly_where_nothing_was_rounded_otherwise() -> None:
    assert not compare(one(zero_count=10), one(zero_count=11)).same
    assert compare(one("float32", zero_count=10), one("bfloat16", zero_count=11)).same
    assert not compare(
        one("float32", zero_count=10), one("bfloat16", zero_count=11), tolerance=Tolerance(exact=True)
    ).same


def test_what_one_run_did_not_measure_agrees_with_everything() -> None:
    assert compare(one(abs_mean=None, rms=None, zero_count=None), one(abs_mean=1.0, rms=1.5, zero_count=3)).same
    assert compare(one(abs_min=None, abs_max=None, finite_abs_max=None, nan_count=None), one(abs_max=9.0)).same


def test_tolerance_grows_with_depth_behind_what_differs_already() -> None:
    # GIVEN runs whose first frame differs by rounding, and a later one by a little more
    frames = training(2)
    other = changed(frames, 0, 2, abs_max=2.0 * (1 - 2.0**-10))
    most = 2 * math.sqrt(6) * 10  # the fourth root of 10,000: of four elements all may be small
    for epsilons, agree in ((most * 0.99, True), (most * 1.02, False)):
        last = changed(other, 5, 2, abs_max=2 * (1 + 5 / 8) * (1 - epsilons * 2.0**-10))
        assert compare(frames, last).same == agree

    # WHEN nothing before it differs, THEN its depth is no excuse
    assert not compare(frames, changed(frames, 5, 2, abs_max=2 * (1 + 5 / 8) * (1 - 3 * 2.0**-10))).same


def test_a_coarse_difference_upstream_is_inherited_by_finer_dtypes() -> None:
    def run(first: float, second: float, dtype: str = "bfloat16") -> list[Frame]:
        return [
            frame(
                0, 0, "low", tensor("output", "output", dtype=dtype, abs_max=first, finite_abs_max=first), in_batch=0
            ),
            frame(1, 0, "norm", tensor("output", "output", dtype="float32", abs_max=second, finite_abs_max=second)),
        ]

    assert compare(run(1.0, 1.0), run(1.0 - 2**-8, 1.0 - 2**-8)).same
    assert not compare(run(1.0, 1.0), run(1.0, 1.0 - 2**-8)).same
    assert compare(run(1.0, 1.0), run(1.0, 1.0 - 2**-8, "float32")).same  # another dtype is a difference already


def test_weights_inherit_from_earlier_batches_only() -> None:
    def run(output: float, weight: float, batch: int) -> list[Frame]:
        low = tensor("output", "output", dtype="bfloat16", abs_max=output, finite_abs_max=output)
        fc = tensor("weight", "weight", dtype="float32", abs_max=weight, finite_abs_max=weight)
        return [
            frame(0, 0, "low", low, in_batch=0, optimizer_step=0),
            frame(1, batch, "fc", fc, in_batch=0 if batch else 1, optimizer_step=batch),
        ]

    # GIVEN rounding in batch 0, WHEN a float32 weight differs as much in the same batch, THEN no update explains it
    assert not compare(run(1.0, 1.0, 0), run(1.0 - 2**-8, 1.0 - 2**-8, 0)).same
    # WHEN it does so one update later, THEN that is what rounding does
    assert compare(run(1.0, 1.0, 1), run(1.0 - 2**-8, 1.0 - 2**-8, 1)).same


def test_a_bias_of_rounding_errors_is_judged_on_its_modules_scale() -> None:
    def run(scale: float, bias: float) -> list[Frame]:
        weight = tensor("weight", "weight", dtype="float32", abs_max=1.0, finite_abs_max=1.0)
        other = tensor("weight", "bias", dtype="float32", abs_min=0.0, abs_max=bias, finite_abs_max=bias)
        output = tensor("output", "output", dtype="bfloat16", abs_max=scale, finite_abs_max=scale)
        return [
            frame(0, 0, "norm", output, in_batch=0, optimizer_step=0),
            frame(1, 1, "norm", weight, other, in_batch=0, optimizer_step=1),
        ]

    assert compare(run(1.0, 1e-14), run(1.0 - 2**-8, 7e-14)).same
    assert not compare(run(1.0, 1e-14), run(1.0, 7e-14)).same


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 256])
def test_few_elements_may_differ_by_more_behind_what_differs_already(count: int) -> None:
    def run(first: float, second: float) -> list[Frame]:
        sizes: dict[str, Any] = {"shape": (count,), "numel": count}
        return [
            frame(0, 0, "a", tensor("output", "output", **MANY, abs_max=first, finite_abs_max=first), in_batch=0),
            frame(1, 0, "b", tensor("output", "output", **sizes, abs_max=second, finite_abs_max=second), in_batch=1),
        ]

    # GIVEN float16 rounding before a tensor of so many elements, one frame further
    limit = 2 * math.sqrt(2) * 2.0**-10 * 10_000 ** (1 / count)
    # THEN it may differ by the n-th root of 10,000 times as much, and by anything where that is more than there is
    assert compare(run(1.0, 1.0), run(1.0 - 2**-10, 1.0 - min(limit, 1.0) * 0.99)).same
    assert compare(run(1.0, 1.0), run(1.0 - 2**-10, max(1.0 - limit * 1.01, 0.0))).same == (limit >= 1.0)
    # WHEN nothing before it differs, THEN their number is no excuse
    assert not compare(run(1.0, 1.0), run(1.0, 1.0 - 3 * 2**-10)).same


@pytest.mark.parametrize(("dtype", "factor"), [("float16", 1), ("float32", 64)])
def test_two_formats_part_by_more_once_an_update_was_computed_in_each(dtype: str, factor: int) -> None:
    def run(dtype: str, first: float, second: float) -> list[Frame]:
        sides: dict[str, Any] = {**MANY, "dtype": dtype}
        one, other = (tensor("output", "output", **sides, abs_max=x, finite_abs_max=x) for x in (first, second))
        return [
            frame(0, 0, "a", one, in_batch=0, optimizer_step=0),
            frame(1, 1, "a", other, in_batch=0, optimizer_step=1),
        ]

    # GIVEN rounding in batch 0, in one format or two, WHEN the output differs one update later
    limit = 2 * math.sqrt(2) * 2.0**-10 * factor
    for share, agree in ((0.98, True), (1.02, False)):
        diff = compare(run(dtype, 1.0, 1.0), run("float16", 1.0 - 2**-10, 1.0 - limit * share))
        # THEN two formats may have drifted apart, and one format may not
        assert diff.same == agree


def test_a_least_magnitude_is_not_judged_where_something_was_rounded_otherwise() -> None:
    pair = one("float32", abs_min=1e-3, abs_max=1.0), one("bfloat16", abs_min=0.3, abs_max=1.0)
    diff = compare(*pair)
    assert diff.same
    assert diff.compared.tolerated == 1
    assert not compare(*pair, tolerance=Tolerance(exact=True)).same


def test_a_factor_of_two_is_never_rounding() -> None:
    frames = [
        frame(n, 0, f"layer{n}", tensor("output", "output", **MANY, dtype="float8_e5m2", abs_max=1.0), in_batch=n)
        for n in range(200)
    ]
    frames = [changed([one], 0, 0, abs_max=1.0)[0] for one in frames]
    other = changed(changed(frames, 0, 0, abs_max=0.75), 199, 0, abs_max=0.45)
    first = compare(frames, other).first_divergence
    assert first is not None
    assert first.frame_number_a == 199


def test_rtol_and_atol_replace_the_dtype() -> None:
    assert apart(0.09, "float32", "float32", tolerance=Tolerance(rtol=0.1)).same
    assert not apart(0.11, "float32", "float32", tolerance=Tolerance(rtol=0.1)).same
    assert not apart(2**-9, "bfloat16", "bfloat16", tolerance=Tolerance(rtol=0.0)).same
    assert apart(0.09, "float32", "float32", tolerance=Tolerance(atol=0.1)).same
    assert not apart(0.11, "float32", "float32", tolerance=Tolerance(atol=0.1)).same


def test_exact_tolerates_neither_a_bit_nor_another_dtype() -> None:
    exact = Tolerance(exact=True)
    assert apart(0.0, "float32", "float32", tolerance=exact).same
    assert not apart(2**-53, "bfloat16", "bfloat16", tolerance=exact).same
    first = apart(0.0, "float32", "float64", tolerance=exact).first_divergence
    assert first is not None
    assert first.largest is not None
    assert (first.largest.figure, first.largest.a, first.largest.b) == ("dtype", "float32", "float64")


@pytest.mark.parametrize(
    "options",
    [
        {"rtol": -1.0},
        {"rtol": NAN},
        {"atol": INF},
        {"slack": -2.0},
        {"exact": True, "rtol": 0.1},
        {"exact": True, "atol": 1.0},
    ],
)
def test_a_tolerance_that_means_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"rtol|atol|slack"):
        Tolerance(**options)


def test_units_agree_with_numpys_spacing() -> None:
    # GIVEN a float16 value and its neighbour, WHEN they are compared, THEN they are one epsilon apart at 1.0
    value = np.float16(1.0)
    neighbour = np.nextafter(value, np.float16(2.0))
    diff = compare(one("float16", abs_max=float(neighbour)), one("float16", abs_max=float(value)))
    assert diff.growth[0].epsilons == pytest.approx(1.0, rel=2e-3)
