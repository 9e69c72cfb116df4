"""Frames of two runs beside each other, in the standard report's format, with a mark between."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from overflow_analyzer.render.report import render_frame
from overflow_analyzer.text.terminal import display_width, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overflow_analyzer.diff import FramePair
    from overflow_analyzer.format.frames import Entry, Frame


_DIFFERS, _ONLY_A, _ONLY_B, _ALIKE = " ! ", " < ", " > ", "   "
_HEADER: Final = "abs min  abs max  metadata"
_NARROWEST: Final = 40  # below, half a terminal shows nothing of a module's name


def render_side_by_side(pairs: Sequence[FramePair], names: tuple[str, str], width: int | None = None) -> str:
    """Return the frames as lines of A, mark, line of B, ended by a newline.

    Between the two stands ``!`` where an entry differs by more than is tolerated, ``<`` where only A has it, ``>``
    where only B has it.

    Args:
        pairs: In order.
        names: What A and B are called, above their columns.
        width: Columns of the terminal; None where lines may be of any length.
    """
    rows = [(names[0], _ALIKE, names[1]), (_HEADER, _ALIKE, _HEADER)]
    rows += [row for pair in pairs for row in beside(pair)]
    column = max(display_width(left) for left, _, _ in rows)
    if width is not None:
        column = min(column, max(_NARROWEST, (width - len(_ALIKE)) // 2))
    rest = None if width is None else max(_NARROWEST, width - column - len(_ALIKE))
    lines = []
    for left, mark, right in rows:
        shown = shorten(left, column)
        gap = " " * (column - display_width(shown))
        lines.append(f"{shown}{gap}{mark}{right if rest is None else shorten(right, rest)}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def beside(pair: FramePair) -> Iterator[tuple[str, str, str]]:
    """Yield lines of A, mark, line of B."""
    if pair.a is None or pair.b is None:
        for line in render_frame(pair.a or pair.b) if pair.a or pair.b else ():  # type: ignore[arg-type]  # one is there
            yield (line, _ONLY_A, "") if pair.a else ("", _ONLY_B, line)
        return
    yield render_frame(pair.a)[0], _ALIKE, render_frame(pair.b)[0]
    for one, other in _beside(pair.a.entries, pair.b.entries):
        left, right = _line(pair.a, one), _line(pair.b, other)
        if left or right:
            yield left, _mark(pair, one, other), right


def _beside(a: Sequence[Entry], b: Sequence[Entry]) -> Iterator[tuple[Entry | None, Entry | None]]:
    """Yield the entries of both by role and context, in A's order, then what only B has."""
    in_b = {(one.role, one.context): one for one in b}
    for one in a:
        yield one, in_b.pop((one.role, one.context), None)
    for other in in_b.values():
        yield None, other


def _line(frame: Frame, entry: Entry | None) -> str:
    """Return one entry's line; nothing for an entry that the report does not show."""
    if entry is None:
        return ""
    return "".join(render_frame(replace(frame, entries=(entry,)))[1:])


def _mark(pair: FramePair, one: Entry | None, other: Entry | None) -> str:
    if one is None:
        return _ONLY_B
    if other is None:
        return _ONLY_A
    return _DIFFERS if (one.role, one.context) in pair.differing else _ALIKE
