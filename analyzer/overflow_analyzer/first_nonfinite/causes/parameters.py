"""Rules about weights, buffers, gradients and optimizer state: when they became non-finite, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.causes.case import CauseRule
from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case, Verdict
    from overflow_analyzer.format.columns import Role
    from overflow_analyzer.format.float_formats import FloatFormat
    from overflow_analyzer.format.frames import Entry


_ADAM_EPS: Final = 1e-8
_SECOND_MOMENTS: Final = ("exp_avg_sq", "max_exp_avg_sq", "square_avg")
"""Keys of torch's optimizers for what they divide by the root of."""


def _buffer(case: Case) -> Verdict | None:
    """A buffer, such as a running statistic, is not finite."""
    if case.entry.role != "buffer":
        return None
    outputs = case.frame.of_roles("output")
    finite = outputs and not any(entry.nonfinite for entry in outputs)
    fine = f"{case.frame.label}'s outputs are finite in phase {case.frame.phase}: nothing of it reaches them there"
    return "certain", (case.what, *_when(case), *([fine] if finite else ()))


BAD_BUFFER = CauseRule(
    "bad-buffer",
    _buffer,
    "Look at who writes this buffer. Running statistics: find the batch that spoilt them (a non-finite input or a "
    "variance that does not fit), then `reset_running_stats()` or load an earlier checkpoint. An intended mask: "
    '`ignore=("{case.frame.module_name}:{case.entry.context}",)`.',
)


def _at_start(case: Case) -> Verdict | None:
    """A parameter was not finite when the recorder first looked."""
    frame = case.frame
    if case.entry.role != "weight" or frame.optimizer_step or frame.batch_number or case.last_finite is not None:
        return None
    return "certain", (
        case.what,
        "it is batch 0, before any optimizer step that the recorder counted; what was done before is not recorded",
    )


BAD_PARAMETER_AT_START = CauseRule(
    "bad-parameter-at-start",
    _at_start,
    "Look at how it was made: `torch.empty` without an initialisation, a checkpoint that was not finite or is of "
    "another format, a conversion to float16 of values above 65504, a training before the recorder was attached.",
)


def _gradient_applied(case: Case) -> Verdict | None:
    """A parameter became non-finite after a step with a gradient that had an inf or nan."""
    if case.entry.role != "weight" or case.gradient is None or case.last_finite is None:
        return None
    own = [entry for entry in _of_parameter(case, "weight_grad") if entry.nonfinite_count]
    frame, gradient = case.gradient
    taken = case.frame.optimizer_step > frame.optimizer_step
    return "likely" if own and taken else "possible", (
        case.what,
        *_when(case),
        f"{gradient.label} of {frame.label} had {gradient.counts} in {frame.moment}",
        *([f"its own gradient had {own[0].counts}"] if own and own[0] is not gradient else ()),
    )


GRADIENT_APPLIED = CauseRule(
    "gradient-applied",
    _gradient_applied,
    "Do not step on such a gradient: `GradScaler` skips it, `clip_grad_norm_(..., error_if_nonfinite=True)` raises. "
    "Then find what made the gradient inf.",
)


def _optimizer_underflow(case: Case) -> Verdict | None:
    """A narrow second moment is 0, and Adam's eps is 0 there too: the step divides by 0."""
    entry, limits, last = case.entry, case.limits, case.last_finite
    if entry.role != "weight" or limits is None or last is None:
        return None
    lost = _lost_eps(case, limits)
    if lost is None:
        return None
    moments = [one for one in _of_parameter(case, "optimizer_state") if one.context.endswith(_SECOND_MOMENTS)]
    gradients = _of_parameter(case, "weight_grad")
    zeros = [one for one in moments if one.abs_min == 0]
    if not zeros or case.frame.optimizer_step == last.optimizer_step:
        return None
    smallest = limits.smallest_subnormal
    finite = bool(gradients) and not gradients[-1].nonfinite_count and gradients[-1].abs_max is not None
    # A zero moment under an eps that was raised divides by that eps: an infinity is what x/0 leaves.
    infinite = bool(entry.posinf_count or entry.neginf_count)
    return "likely" if finite and infinite else "possible", (
        case.what,
        *_when(case),
        *(f"{one.context} holds zeros (abs min 0)" for one in zeros[-2:]),
        lost,
        f"so is the square of a gradient below {(smallest / 2) ** 0.5:.1e}",
        *([f"its last gradient before was finite (abs max {gradients[-1].abs_max:.2e})"] if finite else ()),
    )


def _lost_eps(case: Case, limits: FloatFormat) -> str | None:
    """Say which optimizer's eps is 0 in a format; None where each divides by one that is not, or by none."""
    known = {f"{name}'s": values["eps"] for name, values in case.optimizers.items() if "eps" in values}
    if not case.optimizers:
        known = {"Adam's default": _ADAM_EPS}
    lost = next((name for name, eps in known.items() if eps <= limits.smallest_subnormal / 2), None)
    if lost is None:
        return None
    smallest = f"{limits.name}, whose smallest value is {limits.smallest_subnormal:.2e}"
    return f"an eps of {known[lost]:g} ({lost}) is 0 in {smallest}"


OPTIMIZER_UNDERFLOW = CauseRule(
    "optimizer-underflow",
    _optimizer_underflow,
    "Keep master weights and optimizer state in float32 (autocast), use bfloat16, or give Adam an eps that the format "
    "holds, such as 1e-4.",
)


def _optimizer_overflow(case: Case) -> Verdict | None:
    """An optimizer's state became non-finite in a step whose gradients were finite."""
    entry, limits = case.entry, case.limits
    if entry.role != "optimizer_state":
        return None
    parameter = entry.context.rpartition(".")[0]
    frames = (one for one in case.before if one.module_name == case.frame.module_name)
    gradients = [one for frame in frames for one in frame.of_roles("weight_grad") if one.context == parameter]
    figure = gradients[-1].magnitude if gradients and not gradients[-1].nonfinite_count else None
    if figure is None or limits is None:
        return "possible", (case.what, "it was made in the optimizer's step: no gradient before it was not finite")
    overflows = figure * figure > limits.max and not entry.nan_count
    return "likely" if overflows else "possible", (
        f"{case.what} after step {case.frame.optimizer_step}",
        f"the gradient of {parameter} was finite (abs max {figure:.2e})",
        f"its square, {figure * figure:.2e}, {'does not fit' if overflows else 'fits'} {limits.name}'s {limits.max:g}",
    )


OPTIMIZER_OVERFLOW = CauseRule(
    "optimizer-overflow",
    _optimizer_overflow,
    "Keep master weights and optimizer state in float32 (autocast) or use bfloat16, and scale the loss so that squares "
    "of gradients fit.",
)


def _went_bad(case: Case) -> Verdict | None:
    """A parameter is not finite; nothing recorded says why."""
    if case.entry.role != "weight":
        return None
    if case.last_finite is not None:
        steps = case.frame.optimizer_step - case.last_finite.optimizer_step
        lost = _lost_eps(case, case.limits) if steps and case.optimizers and case.limits is not None else None
        return "certain", (case.what, *_when(case), *([lost] if lost else ()))
    return "possible", (case.what, "no earlier figures of it were recorded: when it became non-finite is not known")


PARAMETER_WENT_BAD = CauseRule(
    "parameter-went-bad",
    _went_bad,
    'Record what changed it: `roles=("weight", "output", "weight_grad", "optimizer_state")` and `trace_batch_nums` up '
    "to {case.frame.batch_number}. If a step did, clip the gradients or lower the learning rate; if not, look for what "
    "else writes it: a checkpoint, an average, a merge.",
    general=True,
)


def _nonfinite_gradient(case: Case) -> Verdict | None:
    """A gradient is not finite, no loss scale was recorded, and the next weights are not finite or not recorded."""
    if case.entry.role not in ("grad_input", "grad_output", "weight_grad"):
        return None
    spoilt = [one for one in case.after if any(entry.nonfinite for entry in one.of_roles("weight", "optimizer_state"))]
    outcome = (
        f"{spoilt[0].nonfinite_entries[0].context} of {spoilt[0].label} is not finite in batch "
        f"{spoilt[0].batch_number}: it was applied"
        if spoilt
        else "the trace ends before the next weights: whether it was applied is not known"
    )
    return "likely" if spoilt else "possible", (
        case.what,
        "no loss scale was recorded that would skip the step",
        *_zeros_in_the_forward(case),
        outcome,
    )


def _zeros_in_the_forward(case: Case) -> list[str]:
    """Zeros in the forward of that batch, from that module on: roots, norms and powers have no derivative there."""
    names = [frame.module_name for frame in case.batch]
    start = names.index(case.frame.module_name) if case.frame.module_name in names else len(names)
    return [
        f"{entry.context} of {frame.label} held zeros in the forward (abs min 0)"
        for frame in case.batch[start:]
        for entry in frame.of_roles("output")
        if entry.abs_min == 0 and float_format(entry.dtype)
    ][:2]


NONFINITE_GRADIENT = CauseRule(
    "nonfinite-gradient",
    _nonfinite_gradient,
    "Use a GradScaler with float16, or clip with `error_if_nonfinite=True`, so that no such step is taken. A root, "
    "norm or power whose input is 0 has an infinite derivative there: add an eps inside it.",
)


def _of_parameter(case: Case, role: Role) -> list[Entry]:
    """The recorded gradients or states of the parameter before it was seen non-finite, the latest last."""
    context = case.entry.context
    frames = (one for one in case.before if one.module_name == case.frame.module_name)
    found = (entry for one in frames for entry in one.of_roles(role))
    return [entry for entry in found if entry.context == context or entry.context.startswith(f"{context}.")]


def _when(case: Case) -> tuple[str, ...]:
    """Between which two observations it became non-finite."""
    batch, step, last = case.frame.batch_number, case.frame.optimizer_step, case.last_finite
    if last is None:
        return ()
    figure = "" if last.finite_abs_max is None else f" (abs max {last.finite_abs_max:.2e})"
    by = f" of {' and '.join(case.optimizers)}" if case.optimizers else ""
    taken = f"{counted(step - last.optimizer_step, 'optimizer step')}{by} lay between"
    if step == last.optimizer_step:
        # Where no step was ever counted, the recorder may not see them.
        taken = "no optimizer step lay between: it was changed outside any step" if step else "no step was counted"
    return (f"it was finite in batch {last.batch_number}{figure} and not finite in batch {batch}; {taken}",)
