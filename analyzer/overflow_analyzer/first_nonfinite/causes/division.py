"""Rules about zeros: division by them, values too small to be anything else, divisors too large."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from overflow_analyzer.first_nonfinite.causes.case import Cause, Operand, counts_of, figure_of, label_of, moment_of
from overflow_analyzer.first_nonfinite.events import gives_only_zeros
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case, Confidence
    from overflow_analyzer.format.float_formats import FloatFormat
    from overflow_analyzer.format.frames import Entry, Frame


def divisor_overflow(case: Case) -> Cause | None:
    """A divisor is inf, and what was divided by it is 0 everywhere."""
    divisors = [entry for entry in case.frame.of_roles("input") if entry.nonfinite and not entry.nan_count]
    if not divisors or not gives_only_zeros(case.frame):
        return None
    divisor, output = divisors[0], case.frame.of_roles("output")[0]
    fraction = "" if output.zero_count is None else f" (zero fraction {output.zero_count / output.numel:.3g})"
    held = float_format(divisor.dtype)
    limit = [f"{held.name} holds nothing larger than {held.max:g}: a count above it becomes inf"] if held else []
    return Cause(
        "divisor-overflow",
        "likely" if divisor.numel == 1 else "possible",
        (
            f"{divisor.context} of {label_of(case.frame)} has {counts_of(divisor)}",
            *limit,
            f"{output.context} is 0 in all {output.numel} elements{fraction}",
        ),
        "Divide in float32: `x.mean()` does so by itself, dividing by a count in a tensor of the same format does not.",
    )


def division_by_zero(case: Case) -> Cause | None:
    """Something that was divided by is 0, or everything that was normalised is."""
    if case.entry.role not in ("input", "output"):
        return None
    of_zeros = [one for one in case.inputs if figure_of(one.entry) == 0]
    if of_zeros:
        return _division(case, of_zeros[0], "likely" if case.origin is not None else "possible", "is 0 everywhere")
    return None if case.origin is None else _division_in_part(case)


def _division_in_part(case: Case) -> Cause | None:
    """Zeros among other figures: a row of them, or a variance, that was divided by."""
    with_zeros = [one for one in case.inputs if one.entry.abs_min == 0]
    constant = [one for one in case.inputs if one.entry.abs_min == figure_of(one.entry) and one.entry.numel > 1]
    if with_zeros and _is_normalisation(case) and case.entry.nan_count and _fills_rows(case.entry):
        return _division(
            case, with_zeros[0], "possible", "holds zeros, and the nan fill whole rows, as a zero row does"
        )
    if constant and _is_normalisation(case):
        return _division(case, constant[0], "possible", "has one magnitude everywhere: its variance may be 0")
    if with_zeros and case.entry.posinf_count and not case.entry.nan_count:
        return _division(case, with_zeros[0], "possible", "holds zeros")
    return None


def _division(case: Case, zeros: Operand, confidence: Confidence, what: str) -> Cause:
    label, figure = label_of(case.origin or case.frame), figure_of(zeros.entry) or 0.0
    return Cause(
        "division-by-zero",
        confidence,
        (
            f"{case.name(zeros)} {what} (abs max {figure:.2e})",
            case.what,
            *_made_by(case, zeros),
            *_lost_eps(case.entry),
        ),
        f"Divide by `x.clamp_min(eps)`, or add an eps before dividing, in {label}{_smallest_eps(case.entry)}.",
    )


def _smallest_eps(entry: Entry) -> str:
    limits = float_format(entry.dtype)
    return "" if limits is None else f"; the smallest one that {limits.name} holds is {limits.smallest_subnormal:.2e}"


def _is_normalisation(case: Case) -> bool:
    return case.origin is not None and "norm" in case.origin.module_class.lower()


def _fills_rows(entry: Entry) -> bool:
    row = (entry.shape or (0,))[-1]
    return bool(row) and (entry.nan_count or 0) % row == 0


def _made_by(case: Case, zeros: Operand) -> tuple[str, ...]:
    maker = _maker(case, zeros)
    if maker is None or maker is zeros.frame:
        return ()
    return (f"zeros of the same shape came out of {label_of(maker)} before, in {moment_of(maker)}",)


def _maker(case: Case, zeros: Operand) -> Frame | None:
    """The first recorded frame of the batch that turned something into zeros of this shape."""
    for frame in case.batch:
        for entry in frame.of_roles("output"):
            same = (entry.shape, entry.dtype, entry.abs_max) == (zeros.entry.shape, zeros.entry.dtype, 0.0)
            if same and any(figure_of(one) for one in frame.of_roles("input")):
                return frame
    return None


def _lost_eps(entry: Entry) -> tuple[str, ...]:
    """An eps such as Adam's or a norm's that its format rounds to 0."""
    limits = float_format(entry.dtype)
    if limits is None or limits.smallest_subnormal / 2 <= 1e-8:  # noqa: PLR2004  the most common eps
        return ()
    return (f"an eps of 1e-08 is 0 in {limits.name}, whose smallest value is {limits.smallest_subnormal:.2e}",)


def underflow(case: Case) -> Cause | None:
    """A product or square was too small for its format and became 0, and was then divided by."""
    if case.origin is None or case.entry.role not in ("input", "output"):
        return None
    limits = float_format(case.entry.dtype)
    return None if limits is None else (_vanished_before(case, limits) or _vanished_inside(case, limits))


def _vanished_before(case: Case, limits: FloatFormat) -> Cause | None:
    for zeros in case.inputs:
        if figure_of(zeros.entry) != 0:
            continue
        maker = _maker(case, zeros)
        if maker is None:
            continue
        figures = sorted(figure_of(one) or 0.0 for one in maker.of_roles("input", "weight") if figure_of(one))
        factors = (figures[-1], figures[-2] if len(figures) > 1 else figures[-1])
        if _bits_below(factors, limits) > 0:
            return _underflow(
                case,
                (
                    f"{label_of(maker)} took in {figures[-1]:.2e} at most and gave out only 0 ({moment_of(maker)})",
                    _too_small(factors, limits),
                    f"{case.name(zeros)} is 0 everywhere, and {case.what}",
                ),
                "likely",
            )
    return None


def _vanished_inside(case: Case, limits: FloatFormat) -> Cause | None:
    for one in case.inputs:
        figure = figure_of(one.entry) or 0.0
        # Half of the smallest value is still rounded up to it.
        if one.entry.dtype == limits.name and figure > 0 and _bits_below((figure, figure), limits) > 1:
            return _underflow(
                case,
                (
                    f"{case.name(one)} has an abs max of {figure:.2e}",
                    _too_small((figure, figure), limits),
                    case.what,
                ),
                "likely" if _is_normalisation(case) else "possible",
            )
    return None


def _bits_below(factors: tuple[float, float], limits: FloatFormat) -> float:
    """How many bits a product lies below the smallest value; by logarithms, for float64 may not hold it either."""
    return math.log2(limits.smallest_subnormal) - math.log2(factors[0]) - math.log2(factors[1])


def _too_small(factors: tuple[float, float], limits: FloatFormat) -> str:
    what = "its square" if factors[0] == factors[1] else f"the product with {factors[1]:.2e}"
    return (
        f"{what} lies {_bits_below(factors, limits):.1f} bits below {limits.name}'s smallest value, "
        f"{limits.smallest_subnormal:.2e}, and becomes 0"
    )


def _underflow(case: Case, evidence: tuple[str, ...], confidence: Confidence) -> Cause:
    return Cause(
        "underflow",
        confidence,
        evidence,
        f"Compute squares, norms and products of small values in {label_of(case.origin or case.frame)} in float32, or "
        "scale them up first.",
    )
