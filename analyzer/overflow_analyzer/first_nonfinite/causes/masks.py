"""Rules about infinities that were meant: rows of them, products with 0, sums of masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overflow_analyzer.first_nonfinite.causes.case import CauseRule, Operand, fills_rows, half_step_at_max, shown_only
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_analyzer.first_nonfinite.causes.case import Case, Verdict
    from overflow_analyzer.format.frames import Entry, Frame


def is_mask(entry: Entry) -> bool:
    """Whether -inf is all that is not finite in a tensor."""
    return bool(entry.neginf_count) and not entry.posinf_count and not entry.nan_count


def _frames_with_input(case: Case) -> Iterator[Frame]:
    yield case.frame
    if case.origin is not None:
        yield case.origin
    yield from (one for one in case.event.frames if one is not case.frame and one.of_roles("input"))


def _masked_row(case: Case) -> Verdict | None:
    """A softmax over a row in which everything is masked with -inf: 0/0."""
    found = filter(None, map(_masked_row_in, _frames_with_input(case)))
    return next(found, None) or _masked_row_recorded(case)


def _masked_row_recorded(case: Case) -> Verdict | None:
    """A recorded value has full rows: whatever takes a softmax of it gives nan."""
    entry = case.entry
    if entry.role != "value" or not is_mask(entry) or not entry.neginf_row_count:
        return None
    return "possible", (case.where, _full_rows(entry))


def _masked_row_in(frame: Frame) -> Verdict | None:
    mask = next((entry for entry in frame.of_roles("input") if is_mask(entry)), None)
    spoilt = next((entry for entry in frame.of_roles("output") if entry.nan_count), None)
    if mask is None or spoilt is None or not mask.shape or not mask.shape[-1] or mask.neginf_row_count == 0:
        return None
    row, masked, nan = mask.shape[-1], mask.neginf_count or 0, spoilt.nan_count or 0
    is_reduced = spoilt.shape == mask.shape[:-1]  # one element for each row, of which so many are masked whole at most
    if masked < row or (nan > masked // row if is_reduced else not fills_rows(nan, spoilt)):
        return None
    is_implied = masked > mask.numel - mask.numel // row  # more than all rows but one element of each
    full = f"{mask.context} of {frame.label}: "
    if mask.neginf_row_count:
        full += _full_rows(mask)
    else:
        enough = "so many that a whole row of them is certain" if is_implied else "enough for a whole row"
        full += f"{masked} -inf in rows of {row}, {enough}"
    same_shape = spoilt.shape == mask.shape
    # A product with 0 needs a zero; a function of each element makes a nan of each -inf.
    others = [one for one in frame.of_roles("weight", "buffer", "input") if one is not mask and one.kind == "tensor"]
    alone = same_shape and not others and mask.abs_min != 0 and (is_implied or nan < masked)
    return "likely" if alone or _is_of_full_rows(nan, spoilt, mask) else "possible", (
        full,
        f"{spoilt.context} of {frame.label} has {spoilt.counts}",
        *([f"the nan fill {counted(nan // row, 'whole row')} of {row}"] if same_shape else ()),
    )


def _full_rows(mask: Entry) -> str:
    rows = mask.numel // (mask.shape or (1,))[-1]
    return f"{mask.neginf_row_count} of {counted(rows, 'row')} are -inf throughout"


def _is_of_full_rows(nan: int, spoilt: Entry, mask: Entry) -> bool:
    """Whether the nan are what the mask's full rows give, and its other -inf gave none."""
    full, width = mask.neginf_row_count or 0, (spoilt.shape or (0,))[-1]
    row = (mask.shape or (0,))[-1]
    if not full or not width or (mask.neginf_count or 0) == full * row:
        return False
    given, taken = spoilt.numel // width, mask.numel // row
    return given % taken == 0 and nan == full * (given // taken) * width


MASKED_ROW_SOFTMAX = CauseRule(
    "masked-row-softmax",
    _masked_row,
    "Give every row something to attend to (a padded query is one case), or mask with a large finite value such as "
    "`torch.finfo(dtype).min` and set the rows that are masked whole to 0 after the softmax.",
    is_remedy=True,
)


def _zero_times_inf(case: Case) -> Verdict | None:
    """An infinity met a 0 of another operand: their product is nan."""
    for frame in _frames_with_input(case):
        taken = frame.of_roles("input", "weight", "buffer")
        inf = next((one for one in taken if one.nonfinite_count and not one.nan_count), None)
        zeros = next((one for one in taken if one is not inf and one.abs_min == 0), None)
        spoilt = next((one for one in frame.of_roles("output") if one.nan_count), None)
        if inf and zeros and spoilt:
            return "possible", (
                f"{inf.context} of {frame.label} has {inf.counts}, and {zeros.context} holds zeros (abs min 0)",
                f"{spoilt.context} has {spoilt.counts}: 0 x inf is nan",
            )
    return None


ZERO_TIMES_INF = CauseRule(
    "zero-times-inf",
    _zero_times_inf,
    "Choose instead of multiplying: `torch.where(mask, x, 0)` keeps an infinity away from a 0, and `xlogy` and "
    "`masked_fill` do so too.",
    is_remedy=True,
)


INF_MINUS_INF = CauseRule(
    "inf-minus-inf",
    shown_only,
    "Find where the infinities come from: combine masks before they become numbers, and take a row's maximum away only "
    "where it is finite, as `torch.softmax` and `torch.logsumexp` do.",
    is_remedy=True,
)


def _masks_added(case: Case) -> Verdict | None:
    """Values at the format's own limit, as masks are made of, were added to and became -inf."""
    entry, limits = case.entry, case.limits
    if limits is None or not case.made_in_a_forward or not is_mask(entry):
        return None
    # Masks are mostly made outside the module that adds them: what the modules around took in counts too.
    around = (one for one in case.event.frames if one not in (case.frame, case.origin))
    taken = (Operand(one, given) for one in around for given in one.of_roles("input") if not given.nonfinite_count)
    same = [one for one in (*case.operands, *taken) if one.entry.dtype == limits.name]
    full = [one for one in same if one.entry.magnitude == limits.max]
    others = [one for one in same if one not in full and (one.entry.magnitude or 0) >= half_step_at_max(limits)]
    if not full or not (len(full) > 1 or others):
        return None
    added = (full[1:] or others)[0]
    return "possible", (
        f"{case.name(full[0])} holds exactly {limits.name}'s limit, {limits.max:g}, as a mask of finfo.min does",
        f"{case.name(added)} reaches {added.entry.magnitude or 0:.2e}: the sum of both passes the limit",
        f"{case.what}, and no nan or inf",
    )


MASKS_ADDED = CauseRule(
    "masks-added",
    _masks_added,
    "Combine masks with `torch.minimum` or as booleans before they become numbers, or clamp their sum to "
    "`torch.finfo(dtype).min`.",
    is_remedy=True,
)
