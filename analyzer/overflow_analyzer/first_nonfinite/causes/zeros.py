"""Rules about zeros and what has no value there: division, underflow, logarithms, divisors that are too large."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.causes.case import CauseRule, fills_rows
from overflow_analyzer.first_nonfinite.events import gives_only_zeros
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case, Operand, Verdict
    from overflow_analyzer.format.float_formats import FloatFormat
    from overflow_analyzer.format.frames import Frame

_COMMON_EPS: Final = 1e-8
_EPS: Final = re.compile(r"(.*_)?eps(ilon)?", re.ASCII)


def _divisor_overflow(case: Case) -> Verdict | None:
    """A divisor is inf, and what was divided by it is 0 everywhere."""
    infinite = (entry for entry in case.frame.of_roles("input") if entry.nonfinite)
    divisors = [entry for entry in infinite if not entry.nan_count and not entry.neginf_count]
    if not divisors or not gives_only_zeros(case.frame):
        return None
    divisor, output = divisors[0], case.frame.of_roles("output")[0]
    fraction = "" if output.zero_count is None else f" (zero fraction {output.zero_count / output.numel:.3g})"
    held = float_format(divisor.dtype)
    is_count = divisor.numel == 1 and case.frame.module_name != "" and divisor.dtype == "float16"
    return "likely" if is_count else "possible", (
        f"{divisor.context} of {case.frame.label} has {divisor.counts}",
        *([f"{held.name} holds nothing larger than {held.max:g}: a count above it becomes inf"] if held else []),
        f"{output.context} is 0 in all {output.numel} elements{fraction}",
    )


DIVISOR_OVERFLOW = CauseRule(
    "divisor-overflow",
    _divisor_overflow,
    "Divide in float32: `x.mean()` does so by itself, dividing by a count in a tensor of the same format does not.",
    is_remedy=True,
)


def _division(case: Case) -> Verdict | None:
    """Something that may have been divided by is 0: an operand, a row of one, the deviation of one sample."""
    if not case.made_in_a_forward:
        return None
    found = _zeros(case)
    if found is None:
        return None
    zeros, what = found
    return "possible", (
        f"{case.name(zeros)} {what}",
        case.what,
        *_made_by(case, zeros),
        *_lost_eps(case),
    )


def _zeros(case: Case) -> tuple[Operand, str] | None:
    entry = case.entry
    every = entry.nonfinite_count == entry.numel
    known, nan, inf = case.origin is not None, bool(entry.nan_count), bool(entry.posinf_count)
    for one in case.operands:
        if one.entry.magnitude == 0 and (every or not known):  # a finite element was not divided by it
            return one, "is 0 everywhere (abs max 0.00e+00)"
    for one in case.operands if known else ():
        if one.entry.abs_min == 0 and (nan or inf) and fills_rows(entry.nonfinite_count, entry):
            return one, "holds zeros, and what is not finite fills whole rows, as a zero row does"
    for one in case.inputs if known else ():
        if one.entry.abs_min == one.entry.magnitude and one.entry.numel > 1 and nan:
            return one, f"has one magnitude everywhere ({one.entry.abs_min:.2e}): its variance may be 0"
        if (one.entry.shape or (0,))[0] == 1 and one.entry.numel > 1 and entry.nan_count == entry.numel:
            return one, "holds one sample, and every element is nan: a standard deviation over one sample is 0/0"
        if one.entry.abs_min == 0 and inf and not nan:
            return one, "holds zeros"
    return None


def _made_by(case: Case, zeros: Operand) -> tuple[str, ...]:
    maker = _maker(case, zeros) if zeros.entry.magnitude == 0 else None
    if maker is None or maker is zeros.frame:
        return ()
    return (f"zeros of the same shape came out of {maker.label} before, in {maker.moment}",)


def _maker(case: Case, zeros: Operand) -> Frame | None:
    """The first recorded frame of the batch that turned something into zeros of this shape."""
    for frame in case.batch:
        for entry in frame.of_roles("output"):
            same = (entry.shape, entry.dtype, entry.abs_max) == (zeros.entry.shape, zeros.entry.dtype, 0.0)
            if same and any(one.magnitude for one in frame.of_roles("input")):
                return frame
    return None


def _lost_eps(case: Case) -> tuple[str, ...]:
    """The module's own eps; where it is not known, one such as Adam's or a norm's that its format rounds to 0."""
    limits = case.limits
    if limits is None:
        return ()
    smallest = f"is 0 in {limits.name}, whose smallest value is {limits.smallest_subnormal:.2e}"
    settings = case.settings
    for name in () if settings is None else filter(_EPS.fullmatch, settings.values):
        eps = None if settings is None else settings.number(name)
        if eps is not None:
            lost = f", which {smallest}" if 0 < eps <= limits.smallest_subnormal / 2 else ""
            return (f"{name} of {case.label} is {eps:g}{lost}",)
    return (f"an eps of 1e-08 {smallest}",) if limits.smallest_subnormal / 2 > _COMMON_EPS else ()


def _division_advice(case: Case) -> str:
    held = case.limits
    smallest = "" if held is None else f"; the smallest one that {held.name} holds is {held.smallest_subnormal:.2e}"
    return f"Divide by `x.clamp_min(eps)`, or add an eps before dividing, in {case.label}{smallest}."


DIVISION_BY_ZERO = CauseRule("division-by-zero", _division, _division_advice, is_remedy=True)


def _underflow(case: Case) -> Verdict | None:
    """A product or square was too small for its format and became 0, and may have been divided by."""
    limits = case.limits
    if case.origin is None or limits is None or not case.made_in_a_forward:
        return None
    for one in case.inputs:
        figure = one.entry.magnitude or 0.0
        maker = None if figure else _maker(case, one)
        if maker is not None:
            figures = sorted(some.magnitude or 0.0 for some in maker.of_roles("input", "weight") if some.magnitude)
            factors = (figures[-1], figures[-2] if len(figures) > 1 else figures[-1])
            if _bits_below(factors, limits) > 0:
                return "possible", (
                    f"{maker.label} took in {figures[-1]:.2e} at most and gave out only 0 ({maker.moment})",
                    _too_small(factors, limits),
                    f"{case.name(one)} is 0 everywhere, and {case.what}",
                )
        # Half of the smallest value is still rounded up to it.
        if one.entry.dtype == limits.name and figure > 0 and _bits_below((figure, figure), limits) > 1:
            return "possible", (
                f"{case.name(one)} has an abs max of {figure:.2e}",
                _too_small((figure, figure), limits),
                case.what,
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


UNDERFLOW = CauseRule(
    "underflow",
    _underflow,
    "Compute squares, norms and products of small values in {case.label} in float32, or scale them up first.",
    is_remedy=True,
)


def _out_of_domain(case: Case) -> Verdict | None:
    """A logarithm of 0, or a logarithm, root or power of something negative."""
    entry = case.entry
    if case.origin is None or not case.made_in_a_forward:
        return None
    zeros = [one for one in case.inputs if one.entry.abs_min == 0]
    if zeros and entry.neginf_count and not entry.posinf_count:
        counted = [one for one in zeros if one.entry.zero_count == entry.neginf_count]
        return "possible", (
            f"{case.name(zeros[0])} holds zeros (abs min 0), and the logarithm of 0 is -inf",
            *([f"it holds {counted[0].entry.zero_count} zeros: one for each -inf"] if counted else []),
            case.what,
        )
    nan_alone = entry.nan_count and not entry.posinf_count and not entry.neginf_count
    if not nan_alone or not case.inputs or case.origin is not case.frame or any(map(_is_extreme, case.inputs)):
        return None
    largest = max(one.entry.magnitude or 0.0 for one in case.inputs)
    return "possible", (
        case.what,
        f"what went in is neither 0 nor large (abs max {largest:.2e}): dividing by it is harmless, its square fits",
        "a logarithm, root or fractional power of something negative would; a trace holds magnitudes, not signs",
    )


def _is_extreme(operand: Operand) -> bool:
    """Whether 0/0 or a square past the limit could have made a nan of it."""
    limits, figure = float_format(operand.entry.dtype), operand.entry.magnitude or 0.0
    return operand.entry.abs_min == 0 or (limits is not None and figure * figure > limits.max)


OUT_OF_DOMAIN = CauseRule(
    "out-of-domain",
    _out_of_domain,
    "Clamp what goes in (`x.clamp_min(eps)` before a logarithm, root or fractional power), or use the stable form "
    "(`log_softmax`, `logsumexp`, `log1p`).",
    is_remedy=True,
)
