"""Rules about functions that are not defined everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.causes.case import Cause, figure_of

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case, Operand


_PARTIAL: Final = ("log", "sqrt", "pow", "acos", "asin", "atanh", "acosh")
_ADVICE: Final = (
    "Clamp what goes in (`x.clamp_min(eps)` before a logarithm, root or fractional power), or use the stable form "
    "(`log_softmax`, `logsumexp`, `log1p`)."
)


def out_of_domain(case: Case) -> Cause | None:
    """A logarithm of 0, or a logarithm, root or power of something negative."""
    if case.origin is None or case.entry.role not in ("input", "output"):
        return None
    return _logarithm_of_zero(case) or _nan_from_ordinary_figures(case)


def _logarithm_of_zero(case: Case) -> Cause | None:
    entry = case.entry
    if not entry.neginf_count or entry.posinf_count:
        return None
    zeros = [one for one in case.inputs if one.entry.abs_min == 0]
    if not zeros:
        return None
    counted = [one for one in zeros if one.entry.zero_count == entry.neginf_count]
    by_count = [f"it holds {counted[0].entry.zero_count} zeros: one for each -inf"] if counted else []
    named = _is_named(case)
    return Cause(
        "out-of-domain",
        "likely" if counted or named else "possible",
        (
            f"{case.name(zeros[0])} holds zeros (abs min 0), and the logarithm of 0 is -inf",
            *by_count,
            case.what,
        ),
        _ADVICE,
    )


def _nan_from_ordinary_figures(case: Case) -> Cause | None:
    entry = case.entry
    if not entry.nan_count or entry.posinf_count or entry.neginf_count or not case.inputs:
        return None
    if case.origin is not case.frame or any(_is_extreme(one) for one in case.inputs):
        return None
    largest = max(figure_of(one.entry) or 0.0 for one in case.inputs)
    return Cause(
        "out-of-domain",
        "likely" if _is_named(case) else "possible",
        (
            case.what,
            f"what went in is neither 0 nor large (abs max {largest:.2e}): dividing by it is harmless, its square fits",
            "a logarithm, root or fractional power of something negative would; a trace holds magnitudes, not signs",
        ),
        _ADVICE,
    )


def _is_extreme(operand: Operand) -> bool:
    """Whether 0/0 or a square past the limit could have made a nan of it."""
    from overflow_analyzer.format.float_formats import float_format

    limits = float_format(operand.entry.dtype)
    figure = figure_of(operand.entry) or 0.0
    return operand.entry.abs_min == 0 or (limits is not None and figure * figure > limits.max)


def _is_named(case: Case) -> bool:
    name = "" if case.origin is None else f"{case.origin.module_class} {case.origin.module_name}".lower()
    return any(part in name for part in _PARTIAL)
