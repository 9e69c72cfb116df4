"""Why an inf/nan came about: rules over what was recorded. A rule claims no more than its evidence.

The surest answer is taken; of equally sure ones the first in the order below, which begins with the most specific.
Names of modules, classes and paths are never evidence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.causes.case import Case, Cause, CauseRule, Confidence
from overflow_analyzer.first_nonfinite.causes.masks import (
    INF_MINUS_INF,
    MASKED_ROW_SOFTMAX,
    MASKS_ADDED,
    ZERO_TIMES_INF,
)
from overflow_analyzer.first_nonfinite.causes.outside import (
    ABSORBED,
    BAD_BATCH,
    LITERAL,
    LOSS_OUTSIDE_MODULES,
    ONE_RANK_ONLY,
    UNKNOWN,
    UNWRITTEN_MEMORY,
)
from overflow_analyzer.first_nonfinite.causes.overflow import OVERFLOW, OVERFLOW_OF_AN_EXPONENTIAL, PRECISION_CAST
from overflow_analyzer.first_nonfinite.causes.parameters import (
    BAD_BUFFER,
    BAD_PARAMETER_AT_START,
    GRADIENT_APPLIED,
    NONFINITE_GRADIENT,
    OPTIMIZER_OVERFLOW,
    OPTIMIZER_UNDERFLOW,
    PARAMETER_WENT_BAD,
)
from overflow_analyzer.first_nonfinite.causes.zeros import (
    DIVISION_BY_ZERO,
    DIVISOR_OVERFLOW,
    OUT_OF_DOMAIN,
    UNDERFLOW,
)
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from overflow_analyzer.format.origin import Operation

__all__ = ["CAUSES", "Case", "Cause", "CauseRule", "Confidence", "explain"]

_RULES: Final[tuple[CauseRule, ...]] = (
    ABSORBED,
    BAD_BUFFER,
    BAD_PARAMETER_AT_START,
    GRADIENT_APPLIED,
    OPTIMIZER_UNDERFLOW,
    OPTIMIZER_OVERFLOW,
    NONFINITE_GRADIENT,
    DIVISOR_OVERFLOW,
    LOSS_OUTSIDE_MODULES,
    PRECISION_CAST,
    MASKS_ADDED,
    MASKED_ROW_SOFTMAX,
    UNDERFLOW,
    OVERFLOW,
    DIVISION_BY_ZERO,
    ZERO_TIMES_INF,
    INF_MINUS_INF,
    OUT_OF_DOMAIN,
    OVERFLOW_OF_AN_EXPONENTIAL,
    LITERAL,
    UNWRITTEN_MEMORY,
    BAD_BATCH,
    ONE_RANK_ONLY,
    PARAMETER_WENT_BAD,
    UNKNOWN,
)
_SURENESS: Final[dict[Confidence, int]] = {"certain": 0, "likely": 0, "possible": 1, "unknown": 2}

CAUSES: Final = tuple(dict.fromkeys(rule.name for rule in _RULES))
"""Every name that ``Cause.name`` can have."""


def explain(case: Case) -> tuple[CauseRule, Cause]:
    """Return the rule that the evidence speaks for most, and its cause; "unknown" is an answer."""
    shown = _shown_by_the_operation(case)
    if shown is not None:
        return shown
    rules = (ABSORBED, BAD_BATCH, UNKNOWN) if case.came_from_outside else _RULES
    found = [(rule, cause) for rule in rules if (cause := rule.cause_of(case)) is not None]
    return min(found, key=lambda one: (not one[0].is_harmless, _SURENESS[one[1].confidence], one[0].general))


def _shown_by_the_operation(case: Case) -> tuple[CauseRule, Cause] | None:
    """Return the cause that the operands of the operation itself prove, where the recorder saw them."""
    operation = case.operation
    if operation is None or operation.cause is None:
        return None
    rule = next((one for one in _RULES if one.name == operation.cause), None)
    took_nonfinite = any(one.nan_count or one.posinf_count or one.neginf_count for one in operation.operands)
    if rule is None or (took_nonfinite and case.given):
        return None
    return rule, rule.stated(case, "certain", operation.evidence or (_what_it_gives(operation),))


def _what_it_gives(operation: Operation) -> str:
    result, tried, limits = operation.result, operation.tried, float_format(operation.result.dtype)
    if tried is None or tried.abs_max is None or limits is None:
        return f"{operation.name} gave it, with finite operands"
    return f"{operation.name}, in {tried.dtype}: {limits.describe(tried.abs_max)} ({result.dtype} was too narrow)"
