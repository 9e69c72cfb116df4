"""Why an inf/nan came about: rules over what was recorded, each a small function that claims no more than it has seen.

A rule takes a ``Case`` and returns a ``Cause``, or None where it does not apply. They are asked in order, the ones that
rest on the most specific evidence first: the first answer that is at least likely is taken, else the first possible
one, else a general one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.causes.case import Case, Cause, Confidence
from overflow_analyzer.first_nonfinite.causes.data import bad_batch, loss_outside_modules, one_rank_only
from overflow_analyzer.first_nonfinite.causes.division import division_by_zero, divisor_overflow, underflow
from overflow_analyzer.first_nonfinite.causes.domain import out_of_domain
from overflow_analyzer.first_nonfinite.causes.gradients import nonfinite_gradient
from overflow_analyzer.first_nonfinite.causes.harmless import absorbed, unknown
from overflow_analyzer.first_nonfinite.causes.masks import masked_row_softmax, masks_added
from overflow_analyzer.first_nonfinite.causes.overflow import overflow, overflow_inside, precision_cast
from overflow_analyzer.first_nonfinite.causes.parameters import (
    gradient_applied,
    nonfinite_buffer,
    nonfinite_parameter_at_start,
    optimizer_underflow,
    parameter_went_bad,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CAUSES", "Case", "Cause", "Confidence", "explain"]

_RULES: Final[tuple[Callable[[Case], Cause | None], ...]] = (
    nonfinite_buffer,
    nonfinite_parameter_at_start,
    gradient_applied,
    optimizer_underflow,
    nonfinite_gradient,
    divisor_overflow,
    absorbed,
    bad_batch,
    loss_outside_modules,
    precision_cast,
    masks_added,
    masked_row_softmax,
    underflow,
    overflow,
    division_by_zero,
    out_of_domain,
    overflow_inside,
)
_FALLBACKS: Final = (one_rank_only, parameter_went_bad)

CAUSES: Final = (
    "overflow",
    "precision-cast",
    "masks-added",
    "masked-row-softmax",
    "division-by-zero",
    "underflow",
    "divisor-overflow",
    "out-of-domain",
    "bad-batch",
    "loss-outside-modules",
    "bad-parameter-at-start",
    "gradient-applied",
    "optimizer-underflow",
    "parameter-went-bad",
    "nonfinite-gradient",
    "bad-buffer",
    "one-rank-only",
    "absorbed",
    "unknown",
)
"""Every name that ``Cause.name`` can have."""


def explain(case: Case) -> Cause:
    """Return the cause that the evidence speaks for most; "unknown" is an answer.

    Args:
        case: All that is known about one inf/nan.
    """
    if case.entry.role == "weight":
        alone = one_rank_only(case)
        if alone is not None:
            return alone
    found = [cause for rule in _RULES if (cause := rule(case)) is not None]
    for cause in found:
        if cause.confidence != "possible":
            return cause
    general = (rule(case) for rule in _FALLBACKS)
    return next(iter(found), None) or next(filter(None, general), None) or unknown(case)
