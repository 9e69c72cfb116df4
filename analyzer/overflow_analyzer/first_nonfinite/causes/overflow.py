"""Rules about values that grow past what their format can hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.causes.case import CauseRule, Operand, half_step_at_max
from overflow_analyzer.first_nonfinite.growth import bits_per_batch, is_magnitude
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case, Confidence, Verdict
    from overflow_analyzer.format.float_formats import FloatFormat
    from overflow_analyzer.format.frames import Entry


_NEAR: Final = 0.25  # of the limit: two doublings away
_MATRIX: Final = 2  # dimensions of a matrix product's weight


def _overflow(case: Case) -> Verdict | None:
    """A value passed the largest one of its format: the figures before it were near, or their products pass it."""
    entry, limits = case.entry, case.limits
    if limits is None or entry.role not in ("input", "output", "value"):
        return None
    # What holds exactly the limit is a mask, and a mask is no evidence of growth.
    figures = [one for one in (*case.operands, Operand(case.frame, entry)) if _is_figure(one.entry, limits)]
    nearest = max(figures, key=lambda one: one.entry.magnitude or 0.0, default=None)
    share = 0.0 if nearest is None else (nearest.entry.magnitude or 0.0) / limits.max
    reach = _reach_of_matrix_product(case)
    if reach is not None and reach[0] <= limits.max:
        return None  # sums of products do not reach the limit
    fits = share >= _NEAR or reach is not None
    squares = [one for one in case.inputs if _is_figure(one.entry, limits) and _square(one.entry) > limits.max]
    if not fits and not squares:
        return None
    evidence = [] if nearest is None else [f"{case.name(nearest)}: {limits.describe(nearest.entry.magnitude or 0.0)}"]
    if reach is not None:
        evidence.append(reach[1])
    elif squares and share < _NEAR:
        evidence = [
            _does_not_fit(case, squares[0], f"its square, {_square(squares[0].entry):.2e}, does not fit", limits)
        ]
    return _confidence(case, limits, multiplies=reach is not None or _dropout_passes(case, limits)), (
        *evidence,
        *_dropout(case, limits),
        *growth_over_batches(case),
    )


def _is_figure(entry: Entry, limits: FloatFormat) -> bool:
    return entry.dtype == limits.name and bool(entry.magnitude) and entry.magnitude != limits.max


def _confidence(case: Case, limits: FloatFormat, *, multiplies: bool) -> Confidence:
    """Likely only if an infinity shows it, and the module is known to multiply: no mask, cast or quotient."""
    entry = case.entry
    infinite = bool(entry.posinf_count or entry.neginf_count) or not limits.has_inf
    others = [one for one in case.operands if one.entry.magnitude == limits.max or _is_too_wide(one.entry, limits)]
    is_seen = multiplies and infinite and case.origin is not None and (not entry.nan_count or not limits.has_inf)
    return "likely" if is_seen and not others else "possible"


def _reach_of_matrix_product(case: Case) -> tuple[float, str] | None:
    """What a matrix product can reach, where all that the module has are the tensors of one, by their shapes."""
    frame = case.frame
    weights = frame.of_roles("weight")
    if case.origin is not frame or not weights or len(weights[0].shape or ()) != _MATRIX:
        return None
    (rows, count), values, outputs = weights[0].shape or (0, 0), frame.of_roles("input"), frame.of_roles("output")
    shapes = [*((one.shape or (0,))[-1] for one in values), *((one.shape or (0,))[-1] for one in outputs)]
    if shapes != [count, rows] or [one.shape for one in weights[1:]] not in ([], [(rows,)]):
        return None
    weight, value = weights[0].magnitude or 0.0, values[0].magnitude or 0.0
    bias = (weights[1].magnitude or 0.0) if len(weights) > 1 else 0.0
    products = "a product" if count == 1 else f"a sum of {count} products"
    reach = count * weight * value + bias
    return reach, f"{products} of up to {weight:.2e} x {value:.2e} can reach {reach:.2e}"


def _dropout_passes(case: Case, limits: FloatFormat) -> bool:
    p = None if case.settings is None else case.settings.number("p")
    largest = max((one.entry.magnitude or 0.0 for one in case.operands), default=0.0)
    known = case.origin is case.frame and case.frame.module_class == "Dropout" and p is not None and 0 < p < 1
    return known and p is not None and largest / (1 - p) > limits.max


def _dropout(case: Case, limits: FloatFormat) -> tuple[str, ...]:
    """Torch's Dropout multiplies what it keeps by 1/(1-p): whether its p is enough follows from its input."""
    largest = max((one.entry.magnitude or 0.0 for one in case.operands), default=0.0)
    if case.origin is not case.frame or case.frame.module_class != "Dropout" or not 0 < largest <= limits.max:
        return ()
    p = None if case.settings is None else case.settings.number("p")
    if p is not None and 0 < p < 1:
        factor = 1 / (1 - p)
        scaled = f"here by {factor:.3g}: {limits.describe(largest * factor)}"
        return (f"in training Dropout p={p:g} multiplies what it keeps by 1/(1-p), {scaled}",)
    # Half a step above the limit is still rounded down to it. Rounded up, so that the sentence holds.
    percent = math.ceil(1000 * (1 - largest / (limits.max + half_step_at_max(limits)))) / 10
    return (f"in training Dropout multiplies what it keeps by 1/(1-p): from there a p of {percent}% is enough",)


def growth_over_batches(case: Case) -> tuple[str, ...]:
    """Return a sentence about the same tensor in earlier batches, where it grew."""
    points = [(one.batch_number, one.finite_abs_max) for one in case.history if is_magnitude(one.finite_abs_max)]
    bits = bits_per_batch(points)
    if bits is None or bits <= 0:
        return ()
    (first, start), (last, end) = points[0], points[-1]
    figures = f"an abs max of {start:.2e} in batch {first} and {end:.2e} in batch {last}"
    return (f"{case.entry.context} had {figures}: {bits:.2g} bits a batch",)


def _advice(case: Case) -> str:
    operation = case.operation
    if operation is not None and operation.tried is not None and operation.tried.dtype == "float32":
        where = f"{operation.module_name or 'the root module'} ({operation.module_class})"
        return (
            f"Run {operation.name} of {where} in float32, in which the second run found it finite, or scale down what "
            "it takes; `overflow-analyze top TRACE` lists the modules that come next."
        )
    if case.entry.dtype == "float16":
        return (
            f"Run {case.label} in bfloat16 or float32, or scale its input down; "
            "`overflow-analyze top TRACE` lists the modules that come next."
        )
    return (
        f"Find what makes the figures grow: {case.entry.dtype} has no wider format of its size. Lower the learning "
        "rate, clip gradients, or normalise before this module."
    )


OVERFLOW = CauseRule("overflow", _overflow, _advice, shows_growth=True, is_remedy=True)


def _exponential(case: Case) -> Verdict | None:
    """An exponential of what went in does not fit, though the figures themselves are far from the limit."""
    limits = case.limits
    if limits is None or case.origin is None or not case.made_in_a_forward or not case.entry.posinf_count:
        return None
    largest = math.log(limits.max)
    for one in case.inputs:
        if _is_figure(one.entry, limits) and (one.entry.magnitude or 0.0) > largest:
            return "possible", [_does_not_fit(case, one, f"exp of more than {largest:.1f} does not fit", limits)]
    return None


def _square(entry: Entry) -> float:
    return (entry.magnitude or 0.0) * (entry.magnitude or 0.0)


def _does_not_fit(case: Case, one: Operand, what: str, limits: FloatFormat) -> str:
    return f"{case.name(one)} has an abs max of {one.entry.magnitude or 0.0:.2e}: {what} {limits.name}'s {limits.max:g}"


OVERFLOW_OF_AN_EXPONENTIAL = CauseRule(
    OVERFLOW.name,
    _exponential,
    "Compute squares, norms and exponentials in {case.label} in float32, or scale its input down first.",
    shows_growth=True,
    is_remedy=True,
)


def _precision_cast(case: Case) -> Verdict | None:
    """A value of a wider format that its narrower one cannot hold was cast to it."""
    entry, limits = case.entry, case.limits
    if limits is None or not case.made_in_a_forward:
        return None
    too_large = [one for one in case.operands if _is_too_wide(one.entry, limits)]
    if not too_large:
        return None
    one = max(too_large, key=lambda operand: operand.entry.magnitude or 0.0)
    low, cast_low = one.entry.abs_min or 0.0, entry.abs_min or 0.0
    # A cast rounds the least magnitude and leaves it at that; anything else would have to hit it by chance.
    is_same = one.entry.shape == entry.shape and low > 0 and abs(cast_low - low) <= limits.epsilon * low
    return "likely" if is_same else "possible", (
        f"{case.name(one)} is {one.entry.dtype}: {limits.describe(one.entry.magnitude or 0.0)}",
        f"{entry.context} is {limits.name}, which cannot hold it",
        *([f"both have the shape {list(entry.shape or ())} and an abs min of {low:.2e}"] if is_same else ()),
    )


def _is_too_wide(entry: Entry, limits: FloatFormat) -> bool:
    theirs = float_format(entry.dtype)
    return theirs is not None and theirs.max > limits.max and (entry.magnitude or 0.0) > limits.max


PRECISION_CAST = CauseRule(
    "precision-cast",
    _precision_cast,
    'Keep {case.label} out of {case.limits.name} (`with torch.autocast("cuda", enabled=False)` around it), or use '
    "bfloat16.",
    shows_growth=True,
    is_remedy=True,
)
