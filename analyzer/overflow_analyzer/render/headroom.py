"""``Headroom`` as a table in text or Markdown, and as what becomes JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

from overflow_analyzer.format.float_formats import FLOAT_FORMATS
from overflow_analyzer.text.markdown import escape_markdown
from overflow_analyzer.text.sparkline import sparkline
from overflow_analyzer.text.strict_json import fields_of
from overflow_analyzer.text.tables import Column, render_table

if TYPE_CHECKING:
    from overflow_analyzer.headroom.headroom import Headroom, ModuleHeadroom


By = Literal["headroom", "growth", "underflow"]
"""What the modules are ranked by."""

_BARS: Final = 12
_TITLES: Final[dict[By, str]] = {
    "headroom": "Modules by least headroom: how many times the largest figure can double",
    "growth": "Modules by fastest growth: doublings of the largest figure a batch",
    "underflow": "Modules by underflow: 0 everywhere, then by share of subnormals, then by halvings left before that",
}


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _tensor(part: Literal["nearest", "vanishing"]) -> tuple[Column, ...]:
    """Return the columns that say which module and which of its tensors a row is about."""
    return (
        Column("module", lambda one: one.module_name, name=True),
        Column("class", lambda one: one.module_class, name=True),
        Column("tensor", lambda one: getattr(one, part).context, name=True),
        Column("dtype", lambda one: getattr(one, part).dtype),
        Column("batch", lambda one: str(getattr(one, part).batch_number), "right"),
        Column("abs max", lambda one: f"{getattr(one, part).abs_max:.2e}", "right"),
    )


def _share_of_limit(one: ModuleHeadroom) -> str:
    near = one.nearest
    return "" if near is None else f"{near.abs_max / near.limits.max:.1%}" if math.isfinite(near.abs_max) else "inf"


_UPPER_COLUMNS: Final = (
    *_tensor("nearest"),
    Column("of limit", _share_of_limit, "right"),
    Column("headroom bits", lambda one: _figure(one.headroom_bits, ".2f"), "right"),
    Column("bits a batch", lambda one: _figure(one.growth_bits, "+.3f"), "right"),
    Column("batches left", lambda one: _figure(one.batches_left, ".3g"), "right"),
)
_LOWER_COLUMNS: Final = (
    *_tensor("vanishing"),
    Column("halvings left", lambda one: _figure(one.vanishing.floor_bits, ".2f"), "right"),
    Column("zero", lambda one: _figure(one.vanishing.zero_share, ".1%"), "right"),
    Column("subnormal", lambda one: _figure(one.vanishing.subnormal_share, ".1%"), "right"),
)


def render_headroom(
    headroom: Headroom,
    by: By,
    *,
    limit: int | None = None,
    markdown: bool = False,
    ascii_only: bool = False,
    width: int | None = None,
) -> str:
    """Return the ranked modules as a table with what it leaves out.

    Args:
        headroom: Of ``headroom_of``.
        by: What they are ranked by.
        limit: Rows at most; None for all.
        markdown: For pasting into an issue.
        ascii_only: Whether the bars of the last batches are ASCII.
        width: Columns of the terminal; None leaves lines as long as they are.
    """
    ranked = _ranked(headroom, by)
    rows = ranked[:limit]
    columns = _LOWER_COLUMNS if by == "underflow" else _UPPER_COLUMNS
    if by != "underflow" and headroom.batches > 1:
        bars = Column(
            "last batches", lambda one: sparkline([share for _, share in one.recent], _BARS, ascii_only=ascii_only)
        )
        columns = (*columns, bars)
    table = render_table(columns, rows, markdown=markdown, width=width) if rows else ""
    head, notes = [_TITLES[by], *_verdict(headroom)], _notes(headroom, by, len(ranked) - len(rows))
    if markdown:
        lines = [*(f"{escape_markdown(line)}  " for line in head), "", table]
        return "\n".join([*lines, *(f"- {escape_markdown(note)}" for note in notes)]).rstrip() + "\n"
    return "\n".join([*head, *table.splitlines(), *notes]) + "\n"


def _ranked(headroom: Headroom, by: By) -> list[ModuleHeadroom]:
    if by == "growth":
        return headroom.by_growth()
    return headroom.by_headroom() if by == "headroom" else headroom.by_underflow()


def _verdict(headroom: Headroom) -> list[str]:
    if headroom.dtype is None:
        return []
    limit = FLOAT_FORMATS[headroom.dtype].max
    known, beyond = len(headroom.by_headroom()), len(headroom.too_large)
    return [f"{headroom.dtype} holds the recorded figures of {known - beyond} of {known} modules (up to {limit:g})"]


def _notes(headroom: Headroom, by: By, left_out: int) -> list[str]:
    notes = [f"{left_out} more modules are not shown (--limit)"] if left_out else []
    if by != "underflow" and headroom.batches > 1:
        notes.append(f"growth is measured over the last {headroom.batches} recorded batches")
    if by != "underflow" and headroom.masks:
        notes.append(f"{headroom.masks} tensors that hold exactly their format's limit, as masks do, are left out")
    if by == "underflow" and all(one.vanishing is None or one.vanishing.zero_share is None for one in headroom.modules):
        notes.append('zeros and subnormals were not counted: TraceRecorder(..., statistics="full") does')
    return notes


def headroom_as_json(headroom: Headroom, by: By, *, limit: int | None = None) -> dict[str, Any]:
    """Return the ranked modules for ``to_json``."""
    ranked = _ranked(headroom, by)
    return {
        "by": by,
        "dtype": headroom.dtype,
        "modules_too_large": [one.module_name for one in headroom.too_large],
        "growth_batches": headroom.batches,
        "masks_left_out": headroom.masks,
        "modules_left_out": max(0, len(ranked) - (len(ranked) if limit is None else limit)),
        "modules": [_module_as_json(one) for one in ranked[:limit]],
    }


def _module_as_json(one: ModuleHeadroom) -> dict[str, Any]:
    near, low = one.nearest, one.vanishing
    where = ("role", "context", "dtype", "batch_number", "abs_max")
    return {
        **fields_of(
            one, "module_name", "module_class", "headroom_bits", "growth_bits", "batches_left", "nonfinite_count"
        ),
        "nearest": near and {**fields_of(near, *where), "limit": near.limits.max, "limit_dtype": near.limits.name},
        "vanishing": low and fields_of(low, *where, "floor_bits", "zero_share", "subnormal_share"),
    }
