"""Rules about masks: infinities that were meant, and sums of masks that were not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_analyzer.first_nonfinite.causes.case import (
    Cause,
    Operand,
    counts_of,
    figure_of,
    half_step_at_max,
    label_of,
)
from overflow_analyzer.format.float_formats import float_format

if TYPE_CHECKING:
    from overflow_analyzer.first_nonfinite.causes.case import Case
    from overflow_analyzer.format.frames import Entry, Frame


def masked_row_softmax(case: Case) -> Cause | None:
    """Softmax over a row in which everything is masked with -inf: 0/0."""
    for frame in (case.frame, *((case.origin,) if case.origin else ()), *_around(case)):
        found = _masked_row(frame)
        if found is not None:
            return found
    return None


def _around(case: Case) -> tuple[Frame, ...]:
    return tuple(one for one in case.event.frames if one is not case.frame and one.of_roles("input"))


def _masked_row(frame: Frame) -> Cause | None:
    masks = [entry for entry in frame.of_roles("input") if _is_mask(entry)]
    spoilt = [entry for entry in frame.of_roles("output") if entry.nan_count]
    if not masks or not spoilt:
        return None
    mask, row = masks[0], (masks[0].shape or (0,))[-1]
    if not row or (mask.neginf_count or 0) < row:
        return None
    is_softmax = "softmax" in frame.module_class.lower()
    if not is_softmax and "attention" not in frame.module_class.lower() and "mask" not in mask.context:
        return None
    rows = (
        f"{mask.context} of {label_of(frame)} holds {mask.neginf_count} -inf in rows of {row}: enough for a whole row"
    )
    return Cause(
        "masked-row-softmax",
        "certain" if is_softmax and not mask.posinf_count and not mask.nan_count else "likely",
        (rows, f"{spoilt[0].context} of {label_of(frame)} has {counts_of(spoilt[0])}", *_whole_rows(spoilt[0], row)),
        "Give every row something to attend to (a padded query is one case), or mask with a large finite value such as "
        "`torch.finfo(dtype).min` and set the rows that are masked whole to 0 after the softmax.",
    )


def _is_mask(entry: Entry) -> bool:
    return bool(entry.neginf_count) and not entry.posinf_count and not entry.nan_count


def _whole_rows(entry: Entry, row: int) -> tuple[str, ...]:
    count = entry.nan_count or 0
    if count % row or (entry.shape or (0,))[-1] != row:
        return ()
    return (f"the nan fill {count // row} whole {'row' if count == row else 'rows'} of {row}",)


def masks_added(case: Case) -> Cause | None:
    """Values at the format's own limit, as masks are made of, were added to and became -inf."""
    entry, limits = case.entry, float_format(case.entry.dtype)
    if limits is None or entry.role not in ("input", "output") or not _is_mask(entry):
        return None
    same = [one for one in (*case.operands, *_taken_in_around(case)) if one.entry.dtype == limits.name]
    full = [one for one in same if figure_of(one.entry) == limits.max]
    others = [one for one in same if one not in full and (figure_of(one.entry) or 0) >= half_step_at_max(limits)]
    if not full or not (len(full) > 1 or others):
        return None
    added = (full[1:] or others)[0]
    return Cause(
        "masks-added",
        "likely",
        (
            f"{case.name(full[0])} holds exactly {limits.name}'s limit, {limits.max:g}, as a mask of finfo.min does",
            f"{case.name(added)} reaches {figure_of(added.entry) or 0:.2e}: the sum of both passes the limit",
            f"{case.what}, and no nan or inf",
        ),
        "Combine masks with `torch.minimum` or as booleans before they become numbers, or clamp their sum to "
        "`torch.finfo(dtype).min`.",
    )


def _taken_in_around(case: Case) -> tuple[Operand, ...]:
    """What the modules around took in: masks are mostly made outside the module that adds them."""
    around = (one for one in case.event.frames if one not in (case.frame, case.origin))
    return tuple(Operand(one, entry) for one in around for entry in one.of_roles("input") if not entry.nonfinite_count)
