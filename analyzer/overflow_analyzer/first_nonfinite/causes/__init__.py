"""Why an inf/nan came about: rules over what was recorded. A rule claims no more than its evidence.

The surest answer is taken; of equally sure ones the first in the order below, which begins with the most specific.
Names of modules, classes and paths are never evidence.
"""

from __future__ import annotations

from typing import Final

from overflow_analyzer.first_nonfinite.causes.case import Case, Cause, CauseRule, Confidence
from overflow_analyzer.first_nonfinite.causes.masks import MASKED_ROW_SOFTMAX, MASKS_ADDED, ZERO_TIMES_INF
from overflow_analyzer.first_nonfinite.causes.outside import (
    ABSORBED,
    BAD_BATCH,
    LOSS_OUTSIDE_MODULES,
    ONE_RANK_ONLY,
    UNKNOWN,
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
    OUT_OF_DOMAIN,
    OVERFLOW_OF_AN_EXPONENTIAL,
    BAD_BATCH,
    ONE_RANK_ONLY,
    PARAMETER_WENT_BAD,
    UNKNOWN,
)
_SURENESS: Final[dict[Confidence, int]] = {"certain": 0, "likely": 0, "possible": 1, "unknown": 2}

CAUSES: Final = tuple(dict.fromkeys(rule.name for rule in _RULES))
"""Every name that ``Cause.name`` can have."""


def explain(case: Case) -> tuple[CauseRule, Cause]:
    """Return the rule that the evidence speaks for most, and its cause; "unknown" is an answer.

    Args:
        case: All that is known about one inf/nan.
    """
    found = [(rule, cause) for rule in _RULES if (cause := rule.cause_of(case)) is not None]
    return min(found, key=lambda one: (not one[0].is_harmless, _SURENESS[one[1].confidence], one[0].general))
