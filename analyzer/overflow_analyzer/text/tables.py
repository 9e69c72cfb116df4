"""Tables in text and Markdown, names in them shortened only where a terminal is too narrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from overflow_analyzer.text.escape import escape
from overflow_analyzer.text.markdown import escape_markdown, name_span
from overflow_analyzer.text.terminal import display_width, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


_NARROWEST: Final = 12  # columns below which a shortened name says nothing
_GAP: Final = 2


@dataclass(frozen=True)
class Column:
    """One column of a table: its header, and what it shows of an item."""

    header: str
    cell: Callable[[Any], str]
    align: Literal["left", "right"] = "left"
    name: bool = False
    """Whether its cells are names out of a trace: they may be shortened in text, and are code in Markdown."""


def render_table(
    columns: Sequence[Column], items: Iterable[Any], *, markdown: bool = False, width: int | None = None
) -> str:
    """Return a table, ended by a newline; cells are escaped here.

    Args:
        columns: Of the table, at least one.
        items: A row each.
        markdown: A GitHub-flavoured table, never shortened.
        width: Columns of the terminal; None leaves lines as long as they are.
    """
    from tabulate import tabulate

    headers, align = [column.header for column in columns], [column.align for column in columns]
    rows = [[column.cell(item) for column in columns] for item in items]
    # A module called 1e5 is a name: nothing is to be taken for a number.
    if markdown:
        cells = [
            [
                name_span(cell) if one.name and cell else escape_markdown(cell)
                for one, cell in zip(columns, row, strict=True)
            ]
            for row in rows
        ]
        text = tabulate(cells, headers, "github", colalign=align if cells else None, disable_numparse=True)
        return f"{text}\n"
    shown = [headers, *_fitted(columns, [[escape(cell) for cell in row] for row in rows], width)]
    lines = tabulate(shown, tablefmt="plain", colalign=align, disable_numparse=True).splitlines()
    # Columns of wide characters may still be too long together.
    return "".join(f"{line.rstrip() if width is None else shorten(line.rstrip(), width)}\n" for line in lines)


def _fitted(columns: Sequence[Column], rows: list[list[str]], width: int | None) -> list[list[str]]:
    names = [at for at, column in enumerate(columns) if column.name]
    if width is None or not names:
        return rows
    widest = [
        max([display_width(column.header), *(display_width(row[at]) for row in rows)])
        for at, column in enumerate(columns)
    ]
    excess = sum(widest) + _GAP * (len(columns) - 1) - width
    for at in sorted(names, key=lambda at: -widest[at]):
        if excess <= 0:
            break
        allowed = max(_NARROWEST, widest[at] - excess)
        excess -= widest[at] - min(allowed, widest[at])
        for row in rows:
            row[at] = shorten(row[at], allowed)
    return rows
