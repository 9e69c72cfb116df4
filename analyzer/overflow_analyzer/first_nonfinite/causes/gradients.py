"""The rule about gradients that are themselves the first inf/nan that mattered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_analyzer.first_nonfinite.causes.case import Cause, label_of
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case


_MAKES_ZEROS = ("ReLU", "Dropout", "Softmax", "Embedding")  # of whose zeros nothing follows
_GRADIENTS = ("grad_input", "grad_output", "weight_grad", "optimizer_state")


def nonfinite_gradient(case: Case) -> Cause | None:
    """A gradient is bad, no loss scale was in use to skip it, and the next weights are bad or were not recorded."""
    if case.entry.role not in _GRADIENTS:
        return None
    spoilt = [one for one in case.after if any(entry.nonfinite for entry in one.of_roles("weight"))]
    outcome = (
        f"the weights of {label_of(spoilt[0])} are bad in batch {spoilt[0].batch_number}: it was applied"
        if spoilt
        else "the trace ends before the next weights: whether it was applied is not known"
    )
    return Cause(
        "nonfinite-gradient",
        "likely" if spoilt else "possible",
        (case.what, "no loss scale was recorded that would skip the step", *_forward(case), outcome),
        "Use a GradScaler with float16, or clip with `error_if_nonfinite=True`, so that no such step is taken. A root, "
        "norm or power whose input is 0 has an infinite derivative there: add an eps inside it.",
    )


def _forward(case: Case) -> tuple[str, ...]:
    """Zeros in the forward of that batch, from that module on: roots, norms and powers have no derivative there."""
    after = False
    said = []
    for frame in case.batch:
        after = after or frame.module_name == case.frame.module_name
        if after and not frame.module_class.startswith(_MAKES_ZEROS):
            said += [
                f"{entry.context} of {label_of(frame)} held zeros in the forward (abs min 0)"
                for entry in frame.of_roles("output")
                if entry.abs_min == 0 and float_format(entry.dtype)
            ]
    return tuple(said[:2])
