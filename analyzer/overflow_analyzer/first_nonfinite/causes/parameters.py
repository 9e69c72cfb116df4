"""Rules about weights and buffers: when they went bad, and what may have done it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from overflow_analyzer.first_nonfinite.causes.case import Cause, context_of, counts_of, label_of, moment_of
from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case
    from overflow_analyzer.format.frames import Entry


_ADAM_EPS: Final = 1e-8


def nonfinite_buffer(case: Case) -> Cause | None:
    """A buffer, such as a running statistic, is bad."""
    if case.entry.role != "buffer":
        return None
    is_statistic = case.entry.context.startswith("running_")
    outputs = case.frame.of_roles("output")
    finite = outputs and not any(entry.nonfinite for entry in outputs)
    fine = [
        f"{label_of(case.frame)}'s outputs are finite in phase {case.frame.phase}: it does not use the buffer there"
    ]
    return Cause(
        "bad-buffer",
        "certain",
        (case.what, *_when(case), *(fine if finite and is_statistic else ())),
        "Find the batch that spoilt the statistics (a bad input or a variance that does not fit), then "
        "`reset_running_stats()` or load an earlier checkpoint."
        if is_statistic
        else "Look at who writes this buffer. If its infinities are a mask, say so with "
        f'`ignore=("{case.frame.module_name}:{case.entry.context}",)`.',
    )


def gradient_applied(case: Case) -> Cause | None:
    """A parameter went bad after a gradient with an inf or nan was applied to it."""
    if case.entry.role != "weight" or case.gradient is None or not _was_finite(case):
        return None
    frame, gradient = case.gradient
    return Cause(
        "gradient-applied",
        "likely",
        (
            case.what,
            *_when(case),
            f"{context_of(gradient)} of {label_of(frame)} had {counts_of(gradient)} in {moment_of(frame)}",
        ),
        "Do not step on such a gradient: `GradScaler` skips it, `clip_grad_norm_(..., error_if_nonfinite=True)` "
        "raises. Then find what made the gradient inf.",
    )


def optimizer_underflow(case: Case) -> Cause | None:
    """A parameter in a narrow format went bad in a step: Adam's eps is 0 there, and so is a small second moment."""
    entry, limits = case.entry, float_format(case.entry.dtype)
    if entry.role != "weight" or limits is None or limits.smallest_subnormal / 2 <= _ADAM_EPS:
        return None
    if not _was_finite(case) or not case.frame.optimizer_step:
        return None
    infinite = bool(entry.posinf_count or entry.neginf_count)
    states = [f"{one.context} holds zeros (abs min 0)" for one in _states(case) if one.abs_min == 0]
    smallest = limits.smallest_subnormal
    lost = f"an eps of {_ADAM_EPS:g} (Adam's default) is 0 in {limits.name}, whose smallest value is {smallest:.2e}"
    squares = f"so is the square of a gradient below {(smallest / 2) ** 0.5:.1e}: the step divides by 0"
    finite = _finite_gradient(case)
    return Cause(
        "optimizer-underflow",
        "likely" if infinite or states or finite else "possible",
        (
            case.what,
            *_when(case),
            lost,
            squares,
            *states,
            *finite,
            *(["some elements are infinite, as x/0 is; Adam makes nan of an inf gradient"] if infinite else []),
        ),
        "Keep master weights and optimizer state in float32 (autocast), use bfloat16, or give Adam an eps that the "
        'format holds, such as 1e-4. `roles=(..., "optimizer_state")` shows the second moments.',
    )


def _finite_gradient(case: Case) -> tuple[str, ...]:
    """What speaks against the other explanation, an inf gradient."""
    frames = (one for one in case.before if one.module_name == case.frame.module_name)
    found = [entry for one in frames for entry in one.of_roles("weight_grad") if entry.context == case.entry.context]
    if not found or found[-1].nonfinite_count or found[-1].abs_max is None:
        return ()
    return (f"its last gradient before was finite (abs max {found[-1].abs_max:.2e})",)


def _states(case: Case) -> list[Entry]:
    frames = (one for one in case.before if one.module_name == case.frame.module_name)
    return [entry for one in frames for entry in one.of_roles("optimizer_state") if case.entry.context in entry.context]


def nonfinite_parameter_at_start(case: Case) -> Cause | None:
    """A parameter was bad before any step could have changed it."""
    if case.entry.role != "weight" or case.frame.optimizer_step or case.frame.batch_number or _was_finite(case):
        return None
    return Cause(
        "bad-parameter-at-start",
        "certain",
        (case.what, "it is batch 0, and no optimizer step had been taken"),
        "Look at how it was made: `torch.empty` without an initialisation, a checkpoint that was bad or is of another "
        "format, a conversion to float16 of values above 65504.",
    )


def parameter_went_bad(case: Case) -> Cause | None:
    """A parameter is bad; nothing recorded says why."""
    if case.entry.role != "weight":
        return None
    finite = _was_finite(case)
    return Cause(
        "parameter-went-bad",
        "certain" if finite else "possible",
        (case.what, *(_when(case) or ("no earlier figures of it were recorded: when it went bad is not known",))),
        'Record the step that did it: `roles=("weight", "output", "weight_grad", "optimizer_state")` and '
        f"`trace_batch_nums` up to {case.frame.batch_number}. Gradient clipping and a lower learning rate often help.",
    )


def _was_finite(case: Case) -> bool:
    return case.watched_before or any(not one.nonfinite for one in case.history)


def _when(case: Case) -> tuple[str, ...]:
    """Between which two looks it went bad."""
    batch, step = case.frame.batch_number, case.frame.optimizer_step
    finite = [one for one in case.history if not one.nonfinite]
    if finite:
        last = finite[-1]
        steps = step - last.optimizer_step
        figure = "" if last.finite_abs_max is None else f" (abs max {last.finite_abs_max:.2e})"
        taken = f"; {counted(steps, 'optimizer step')} lay between" if steps else ""
        return (f"it was finite in batch {last.batch_number}{figure} and bad in batch {batch}{taken}",)
    if case.watched_before:
        raised = "the recorder raises at the first inf/nan and had raised at nothing before"
        taken = f"{counted(step, 'optimizer step')} had been taken"
        return (f"{raised}, so it went bad after this module's last call; {taken}",)
    return ()
