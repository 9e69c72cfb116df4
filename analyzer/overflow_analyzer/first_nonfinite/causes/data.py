"""Rules about what comes from outside the modules: the batch, the loss, one rank alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_analyzer.first_nonfinite.causes.case import Cause, counts_of, figure_of, label_of
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case
    from overflow_analyzer.format.frames import Entry, Frame


_CHECK_DATA = (
    "Look at this batch's data (a missing value, a division in preprocessing) and check it where it is made: "
    "`assert x.isfinite().all()`."
)


def bad_batch(case: Case) -> Cause | None:
    """What the model was given was bad already."""
    if case.entry.role == "value":
        return _nonfinite_before_the_model(case)
    if case.entry.role != "input" or case.origin is not None:
        return None
    roots = [one for one in (case.frame, *case.after) if one.module_name == "" and one.phase != "backward"]
    if roots:
        given = [entry for entry in roots[0].of_roles("input") if entry.nonfinite]
        return _given(roots[0], given[0]) if given else None
    if case.frame.frame_in_batch != 0:
        return None
    return Cause(
        "bad-batch",
        "possible",
        (
            f"{_what(case.frame, case.entry)}, and it is the first module of the batch that completed",
            "the root's own input was not recorded before the run ended",
        ),
        _CHECK_DATA,
    )


def _given(root: Frame, entry: Entry) -> Cause:
    return Cause("bad-batch", "certain", (f"the model's own {_what(root, entry)}",), _CHECK_DATA)


def _what(frame: Frame, entry: Entry) -> str:
    return f"{entry.context} of {label_of(frame)} has {counts_of(entry)}"


def _nonfinite_before_the_model(case: Case) -> Cause | None:
    if case.frame.frame_in_batch != 0 or case.batch:
        return None
    return Cause(
        "bad-batch",
        "likely",
        (f"{_what(case.frame, case.entry)}, recorded before any module of batch {case.frame.batch_number} ran",),
        _CHECK_DATA,
    )


def loss_outside_modules(case: Case) -> Cause | None:
    """A recorded value is bad although every module before it gave out finite values."""
    if case.entry.role != "value" or case.origin is not None:
        return None
    modules = [one for one in case.batch if one.phase in ("train", "eval")]
    if not modules:
        return None
    evidence = [
        _what(case.frame, case.entry),
        f"the {len(modules)} module frames recorded in batch {case.frame.batch_number} before it are finite",
        *_last_output(modules[-1]),
        *_unmatched(case),
    ]
    return Cause(
        "loss-outside-modules",
        "likely",
        tuple(evidence),
        'Record what goes into it too, as `recorder.record("loss", loss=loss, labels=labels)`. A mean over no element '
        "(all labels ignored) is nan; so is 0 * inf in a mask.",
    )


def _last_output(frame: Frame) -> tuple[str, ...]:
    for entry in frame.of_roles("output"):
        limits, figure = float_format(entry.dtype), figure_of(entry)
        if limits is not None and figure is not None:
            return (f"{entry.context} of {label_of(frame)}, the last before it: {limits.describe(figure)}",)
    return ()


def _unmatched(case: Case) -> tuple[str, ...]:
    others = case.frame.of_roles("value")
    finite = [entry for entry in others if not entry.nonfinite and figure_of(entry) is not None]
    said = [f"{entry.context} recorded with it: abs max {figure_of(entry) or 0.0:.2e}" for entry in finite[:3]]
    if case.entry.numel == 1 and case.entry.nan_count:
        said.append("a single nan is consistent with a mean over no element")
    return tuple(said)


def one_rank_only(case: Case) -> Cause | None:
    """A tensor is bad on one rank and finite on all others in the same batch."""
    if not case.peers or any(one.nonfinite for one in case.peers):
        return None
    where = _what(case.frame, case.entry)
    count = len(case.peers)
    others = "the other rank" if count == 1 else f"all {count} other recorded ranks"
    evidence = (f"{where}; on {others} the same tensor is finite in batch {case.frame.batch_number}",)
    if case.entry.role == "weight":
        return Cause(
            "one-rank-only",
            "likely",
            (
                *evidence,
                "replicas of a weight are equal unless it is sharded, so the step or memory of this rank is it",
            ),
            "Compare the ranks' optimizer states and gradients; a rank that fails again alone points to its hardware.",
        )
    return Cause(
        "one-rank-only",
        "possible",
        (*evidence, "the modules and weights are the same on each, so this rank's data or hardware is it"),
        "Run this rank's batch on another device: if it fails there too it is the data, if not the hardware.",
    )
