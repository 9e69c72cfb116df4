"""``History`` as tables with a sparkline each, in text and Markdown, and as CSV; JSON is its fields."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.markdown import escape_markdown, name_span
from overflow_analyzer.text.sparkline import sparkline
from overflow_analyzer.text.tables import Column, render_table
from overflow_analyzer.text.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_analyzer.trace.history import History, Point, TensorHistory

_SPARKLINE: Final = 60
_CSV: Final = (
    "rank", "module_name", "module_class", "role", "context", "dtype",
    "batch_number", "value", "calls", "nonfinite_count", "change_bits", "jumped",
)  # fmt: skip


def render_history(
    history: History, *, points: int = 20, markdown: bool = False, ascii_only: bool = False, width: int | None = None
) -> str:
    """Return each tensor with its sparkline and a table of its batches.

    Args:
        history: Of ``history_of``.
        points: Batches that a table shows at the end; jumps before them are shown too.
        markdown: For pasting into an issue.
        ascii_only: Whether the sparkline is ASCII.
        width: Columns of the terminal; None leaves lines as long as they are.
    """
    blocks = [
        _tensor(one, history, points, ascii_only=ascii_only, markdown=markdown, width=width) for one in history.tensors
    ]
    if history.left_out:
        blocks.append(f"{counted(history.left_out, 'more tensor')} not shown (--limit)\n")
    return "\n".join(blocks)


def _tensor(
    one: TensorHistory, history: History, count: int, *, ascii_only: bool, markdown: bool, width: int | None
) -> str:
    name = f"{one.module_name}:{one.context}"
    bars = sparkline([point.value for point in one.points], _SPARKLINE, ascii_only=ascii_only)
    facts = [one.module_class, one.role, *([one.dtype] if one.dtype else []), history.figure]
    first, last = one.points[0].batch_number, one.points[-1].batch_number
    over = f"{counted(len(one.points), 'batch')} from {first} to {last}"
    if len({other.rank for other in history.tensors}) > 1:
        facts.insert(0, f"rank {one.rank}")
    shown = [point for at, point in enumerate(one.points) if point.jumped or at >= len(one.points) - count]
    columns = (
        Column("batch", lambda point: str(point.batch_number), "right"),
        Column(history.figure, lambda point: "" if point.value is None else f"{point.value:.2e}", "right"),
        Column("change", _change, "right"),
        Column("note", lambda point: _note(point, one.dtype)),
    )
    table = render_table(columns, shown, markdown=markdown, width=width)
    left_out = len(one.points) - len(shown)
    tail = f"{counted(left_out, 'earlier batch', 'earlier batches')} without a jump not shown (--points)\n"
    if markdown:
        facts_line = escape_markdown(f"{', '.join(facts)}, {over}")
        return f"{name_span(name)}  \n{facts_line}  \n`{bars}`\n\n{table}" + (f"\n- {tail}" if left_out else "")
    return f"{escape(name)}  {escape(', '.join(facts))}, {over}\n{bars}\n{table}" + (tail if left_out else "")


def _change(point: Point) -> str:
    return "" if point.change_bits is None else f"x{2.0**point.change_bits:.3g}" if point.change_bits < 1000 else ""  # noqa: PLR2004


def _note(point: Point, dtype: str | None) -> str:
    notes = ["jump"] if point.jumped else []
    if point.nonfinite_count:
        notes.append(f"{point.nonfinite_count} non-finite")
    limits = float_format(dtype)
    if point.jumped and limits is not None and point.value is not None and 0 < point.value < float("inf"):
        notes.append(limits.describe(point.value))
    if point.calls > 1:
        notes.append(f"largest of {point.calls} calls")
    return ", ".join(notes)


def history_as_csv(history: History) -> Iterator[str]:
    """Yield a header and a line a batch; a null is an empty field."""
    line = io.StringIO()
    writer = csv.DictWriter(line, _CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for one in history.tensors:
        writer.writerows(vars(one) | vars(point) for point in one.points)
        yield line.getvalue()
        line.seek(0)
        line.truncate()
