"""Rules about values that grow past what their format can hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.causes.case import Cause, Operand, figure_of, half_step_at_max, label_of
from overflow_analyzer.first_nonfinite.growth import bits_per_batch, is_magnitude
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case, Confidence
    from overflow_analyzer.format.float_formats import FloatFormat
    from overflow_analyzer.format.frames import Entry


_NEAR: Final = 0.25  # of the limit: two doublings away
_PRODUCTS: Final = frozenset({"Linear", "Conv1d", "Conv2d", "Conv3d"})
"""torch's classes that add products alone, with a weight of shape [out, ...]: they cannot divide."""


def overflow(case: Case) -> Cause | None:
    """A value passed the largest one of its format, near which the figures before it already were."""
    entry, limits = case.entry, float_format(case.entry.dtype)
    if limits is None or entry.role not in ("input", "output", "value"):
        return None
    nearest = _nearest(case, limits)
    near = nearest is not None and limits_share(nearest.entry, limits) >= _NEAR
    products = _products(case, limits)
    confidence = _confidence(case, limits, near=near or bool(products))
    if confidence is None:
        return None
    evidence = [] if nearest is None else [f"{case.name(nearest)}: {limits.describe(figure_of(nearest.entry) or 0.0)}"]
    return Cause(
        "overflow",
        confidence,
        (*evidence, *products, *_dropout(case, limits), *growth_over_batches(case)),
        f"Run {label_of(case.origin or case.frame)} in bfloat16 or float32, or scale its input down; "
        "`overflow-analyze top TRACE` lists the modules that come next."
        if limits.name == "float16"
        else f"Find what makes the figures grow: {limits.name} has no wider format of its size. Lower the learning "
        "rate, clip gradients, or normalise before this module.",
    )


def _confidence(case: Case, limits: FloatFormat, *, near: bool) -> Confidence | None:
    if not near:
        return None
    infinite = bool(case.entry.posinf_count or case.entry.neginf_count) or not limits.has_inf
    return "likely" if infinite else "possible"


def _nearest(case: Case, limits: FloatFormat) -> Operand | None:
    """The operand of the same format that is nearest to the limit, or the finite part of the bad tensor itself."""
    itself = Operand(case.frame, case.entry)
    found = [one for one in (*case.operands, itself) if one.entry.dtype == case.entry.dtype and figure_of(one.entry)]
    return max(found, key=lambda one: limits_share(one.entry, limits), default=None)


def limits_share(entry: Entry, limits: FloatFormat) -> float:
    """Return an entry's largest finite magnitude as a share of a format's limit."""
    return (figure_of(entry) or 0.0) / limits.max


def _products(case: Case, limits: FloatFormat) -> tuple[str, ...]:
    """What sums of products can reach, where that is past the limit; where it is not, they did not overflow."""
    if case.origin is not case.frame or case.frame.module_class not in _PRODUCTS:
        return ()
    weights = [one.entry for one in case.operands if one.entry.context == "weight" and one.entry.shape]
    largest = max(case.inputs, key=lambda one: figure_of(one.entry) or 0.0, default=None)
    if not weights or largest is None:
        return ()
    weight, value = figure_of(weights[0]) or 0.0, figure_of(largest.entry) or 0.0
    count = weights[0].numel // max(1, (weights[0].shape or (1,))[0])
    if count * weight * value <= limits.max:
        return ()
    products = "a product" if count == 1 else f"a sum of {count} products"
    return (f"{products} of up to {weight:.2e} x {value:.2e} can reach {count * weight * value:.2e}",)


def _dropout(case: Case, limits: FloatFormat) -> tuple[str, ...]:
    """Dropout multiplies what it keeps by 1/(1-p): which p is enough follows from its input."""
    if case.origin is not case.frame or not case.frame.module_class.startswith("Dropout"):
        return ()
    largest = case.largest()
    if largest is None or not 0 < (figure_of(largest.entry) or 0.0) <= limits.max:
        return ()
    # Half a step above the limit is still rounded down to it. Rounded up, so that what is said holds.
    enough = 1 - (figure_of(largest.entry) or 0.0) / (limits.max + half_step_at_max(limits))
    percent = math.ceil(1000 * enough) / 10
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


def precision_cast(case: Case) -> Cause | None:
    """A value of a wider format that its narrower one cannot hold was cast to it."""
    limits = float_format(case.entry.dtype)
    if limits is None or case.entry.role not in ("input", "output"):
        return None
    too_large = [one for one in case.operands if _is_wider(one, limits) and (figure_of(one.entry) or 0) > limits.max]
    if not too_large:
        return None
    one = max(too_large, key=lambda operand: figure_of(operand.entry) or 0.0)
    return Cause(
        "precision-cast",
        "likely",
        (
            f"{case.name(one)} is {one.entry.dtype}: {limits.describe(figure_of(one.entry) or 0.0)}",
            f"{case.entry.context} is {limits.name}, which cannot hold it",
        ),
        f"Keep {label_of(case.origin or case.frame)} out of {limits.name} "
        '(`with torch.autocast("cuda", enabled=False)` around it), or use bfloat16.',
    )


def _is_wider(operand: Operand, limits: FloatFormat) -> bool:
    theirs = float_format(operand.entry.dtype)
    return theirs is not None and theirs.max > limits.max


def overflow_inside(case: Case) -> Cause | None:
    """A square or an exponential of what went in does not fit, though the figures themselves are far from the limit."""
    limits, origin = float_format(case.entry.dtype), case.origin
    if limits is None or origin is None or case.entry.role not in ("input", "output"):
        return None
    infinite = bool(case.entry.posinf_count or case.entry.neginf_count)
    for one in case.inputs:
        figure = figure_of(one.entry) or 0.0
        if one.entry.dtype != limits.name:
            continue
        if figure * figure > limits.max:
            what = f"its square, {figure * figure:.2e}, does not fit {limits.name}'s {limits.max:g}"
        elif infinite and "exp" in origin.module_class.lower() and figure > math.log(limits.max):
            what = f"exp of more than {math.log(limits.max):.1f} does not fit {limits.name}'s {limits.max:g}"
        else:
            continue
        return Cause(
            "overflow",
            "possible",
            (f"{case.name(one)} has an abs max of {figure:.2e}: {what}",),
            f"Compute squares, norms and exponentials in {label_of(origin)} in float32, or scale its input down first.",
        )
    return None
