"""Rules about what is no module's arithmetic: the batch, the loss, one rank alone, what was absorbed, the unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_analyzer.first_nonfinite.causes.case import CauseRule, shown_only
from overflow_analyzer.first_nonfinite.causes.masks import is_mask
from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case, Verdict


def _bad_batch(case: Case) -> Verdict | None:
    """The model was given an inf or nan."""
    frame, is_first = case.frame, case.frame.frame_in_batch == 0
    if case.given:
        return "certain", (
            *(f"the model's own {one.source} has {one.counts}" for one in case.given),
            "the second run of the model shows that it stems from there",
        )
    if case.entry.role == "value" and is_first and not case.batch:
        return "possible" if is_mask(case.entry) else "likely", [
            f"{case.where}, recorded before any module of batch {frame.batch_number} ran"
        ]
    if case.entry.role != "input" or case.origin is not None:
        return None
    root = next((one for one in (frame, *case.after) if one.module_name == "" and one.phase != "backward"), None)
    given = [] if root is None else [one for one in root.of_roles("input") if one.nonfinite]
    if root is not None and given:
        what = f"the model's own {given[0].context} of {root.label} has {given[0].counts}"
        # -inf alone may be a mask that was meant.
        return "possible" if all(map(is_mask, given)) else "certain", [what]
    if root is not None or not is_first:
        return None
    return "possible", (
        f"{case.where}, and it is the first module of the batch that completed",
        "the root's own input was not recorded before the run ended",
    )


BAD_BATCH = CauseRule(
    "bad-batch",
    _bad_batch,
    "Look at this batch's data (a missing value, a division in preprocessing) and check it where it is made: "
    "`assert x.isfinite().all()`.",
    came_with_the_batch=True,
)


LITERAL = CauseRule(
    "literal",
    shown_only,
    "If it is a mask, its pattern `MODULE:CONTEXT` tells the recorder so (`ignore=`); or mask with a large finite "
    "value such as `torch.finfo(dtype).min`. If not, look at where the number comes from.",
)
UNWRITTEN_MEMORY = CauseRule(
    "unwritten-memory",
    shown_only,
    "`torch.empty` and its relatives hold whatever was in memory before: write every element, or use `torch.zeros`.",
)


def _loss_outside_modules(case: Case) -> Verdict | None:
    """A recorded value is not finite although every module before it gave out finite values."""
    modules = [one for one in case.batch if one.phase in ("train", "eval")]
    if case.entry.role != "value" or case.origin is not None or not modules:
        return None
    last = modules[-1]
    spoilt = any(entry.nonfinite for one in modules for entry in one.of_roles("output"))
    given = ((one, float_format(one.dtype)) for one in last.of_roles("output") if one.magnitude is not None)
    said = [
        f"{one.context} of {last.label}, the last before it: {limits.describe(one.magnitude or 0.0)}"
        for one, limits in given
        if limits is not None
    ][:1]
    beside = [one for one in case.frame.of_roles("value") if not one.nonfinite and one.magnitude is not None]
    said += [f"{one.context} recorded with it: abs max {one.magnitude or 0.0:.2e}" for one in beside[:3]]
    if case.entry.numel == 1 and case.entry.nan_count:
        said.append("a single nan is consistent with a mean over no element")
    # A frame that was not kept may have made it.
    places = [one.frame_in_batch for one in (*case.batch, case.frame)]
    without_gaps = places == list(range(places[0], places[0] + len(places)))
    finite = "are finite" if not any(one.nonfinite_entries for one in modules) else "came to nothing non-finite"
    return "likely" if without_gaps and not spoilt else "possible", (
        case.where,
        f"the {counted(len(modules), 'module frame')} recorded in batch {case.frame.batch_number} before it {finite}",
        *said,
    )


LOSS_OUTSIDE_MODULES = CauseRule(
    "loss-outside-modules",
    _loss_outside_modules,
    'Record what goes into it too, as `recorder.record("loss", loss=loss, labels=labels)`. A mean over no element (all '
    "labels ignored) is nan; so is 0 * inf in a mask.",
)


def _one_rank_only(case: Case) -> Verdict | None:
    """A tensor is not finite on one rank and finite on all others in the same batch."""
    if not case.peers or any(one.nonfinite for one in case.peers):
        return None
    count = len(case.peers)
    others = "the other rank" if count == 1 else f"all {count} other recorded ranks"
    where = f"{case.where}; on {others} the same tensor is finite in batch {case.frame.batch_number}"
    if case.entry.role == "weight" and case.replicated:
        return "likely", (where, "in an earlier batch it had the same figures on each of them: they are replicas")
    return "possible", (where, "the step, the data or the hardware of this rank may have made it")


ONE_RANK_ONLY = CauseRule(
    "one-rank-only",
    _one_rank_only,
    "Compare the ranks' optimizer states and gradients, and run this rank's batch on another device: if it fails there "
    "too it is the data, if not the hardware.",
    general=True,
)


def _absorbed(case: Case) -> Verdict | None:
    """Something non-finite was taken in or given out, and all that came of it is finite."""
    event = case.event
    if not event.was_absorbed:
        return None
    last, around = event.absorbed[-1:], event.contained_by
    is_whole = around is not None or any(one.module_name == "" for one in last)
    return "likely" if is_whole else "possible", (
        case.what,
        *(f"{one.label} took it in and gave only finite values out" for one in last),
        *([f"all that {around.label} gave out around it is finite"] if around is not None else ()),
        *(["it is -inf alone, which is consistent with a mask"] if is_mask(case.entry) else ()),
    )


def _absorbed_advice(case: Case) -> str:
    if case.origin is not None and not case.event.is_mask:
        return (
            f"{case.label} made it, and it may still reach the loss or a gradient (0 * inf is nan): record them, as "
            '`recorder.record("loss", loss=loss)`, and see what operation it is with `on_nonfinite="raise"`.'
        )
    patterns = _patterns(case)
    quoted = ", ".join(f'"{one}"' for one in patterns)
    return (
        f"If it is meant (a mask, say), tell the recorder: `ignore=({quoted}{',' * (len(patterns) == 1)})`. "
        "If not, mind the gradient: 0 * nan is nan."
    )


def _patterns(case: Case) -> list[str]:
    """Return what the recorder is to ignore: one pattern where all are arguments that are called a mask."""
    modules: dict[str, list[str]] = {}
    for frame in case.event.frames:
        for entry in frame.nonfinite_entries:
            modules.setdefault(entry.context, []).append(frame.module_name)
    masks = [context for context in modules if context.startswith("input[") and context.endswith("mask]")]
    several = {"*:input[*mask]": masks} if len(masks) > 1 else {}
    others = [context for context in modules if context not in several.get("*:input[*mask]", ())]
    single = [f"{modules[context][0] if len(modules[context]) == 1 else '*'}:{context}" for context in others]
    return [*several, *single]


ABSORBED = CauseRule("absorbed", _absorbed, _absorbed_advice, is_harmless=True)


def _unknown(case: Case) -> Verdict:
    """No rule applies."""
    given = [] if case.origin is None else [f"all that {case.origin.label} took in is finite"]
    return "unknown", [case.what, *given]


UNKNOWN = CauseRule(
    "unknown",
    _unknown,
    "Record batch {case.frame.batch_number} whole with more figures: "
    '`TraceRecorder(model, path, trace_batch_nums=[{case.frame.batch_number}], statistics="full")`.',
)
