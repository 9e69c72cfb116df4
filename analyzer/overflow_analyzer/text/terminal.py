"""What a stream can show: its width, its colours, and a progress bar for what takes over a second."""

from __future__ import annotations

import os
import shutil
import sys
import time
import unicodedata
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable


T = TypeVar("T")

_FIGURES: Final = 17  # columns of a report's line before its context
_NONFINITE: Final = frozenset({"inf", "nan"})
_MIDDLE: Final = "..."
_PATIENCE: Final = 1.0  # seconds without a bar
_BAR_CELLS: Final = 30


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads ``stream`` as it is written."""
    return stream is not None and not stream.closed and stream.isatty()


def terminal_width(stream: TextIO | None) -> int | None:
    """Columns of the terminal behind ``stream``; None where it is none, and lines may be of any length."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def shows_colour(stream: TextIO | None) -> bool:
    """Whether colours may be used: on a terminal that has them, unless NO_COLOR is set (to anything but nothing)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def highlight(text: str, *, on: bool = True) -> str:
    """Return lines of the standard report with the figures that are inf or nan in red."""
    if not on:
        return text
    from click import style

    return "".join(
        style(line[:_FIGURES], "red") + line[_FIGURES:] if _NONFINITE.intersection(line[:_FIGURES].split()) else line
        for line in text.splitlines(keepends=True)
    )


def display_width(text: str) -> int:
    """Columns that ``text`` takes: two for a wide character, none for one that combines with the one before."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def shorten(text: str, width: int) -> str:
    """Return ``text`` in at most ``width`` columns, cut in the middle: a name's start and end say most."""
    if display_width(text) <= width:
        return text
    kept = max(0, width - len(_MIDDLE))
    start = _take(text, kept - kept // 2)
    end = _take(text[::-1], kept // 2)[::-1]
    return (start + _MIDDLE + end)[: max(width, 0)] if width < len(_MIDDLE) else start + _MIDDLE + end


def _take(text: str, width: int) -> str:
    used = 0
    for position, character in enumerate(text):
        used += _columns(character)
        if used > width:
            return text[:position]
    return text


def progress(items: Iterable[T], total: int, what: str, stream: TextIO | None = None) -> Generator[T, None, None]:
    """Yield ``items``; where that takes over a second, show on a terminal how far it is.

    Args:
        items: What is worked through.
        total: How many they are.
        what: What is done, before the bar.
        stream: Where the bar goes; None for stderr.
    """
    stream = stream or sys.stderr
    shown, started = False, time.monotonic()
    try:
        for done, item in enumerate(items):
            if stream is not None and time.monotonic() - started > _PATIENCE and (shown or is_terminal(stream)):
                share = min(1.0, done / total) if total else 1.0
                full = int(share * _BAR_CELLS)
                stream.write(f"\r{what} [{'#' * full}{'.' * (_BAR_CELLS - full)}] {share:4.0%}\x1b[K")
                stream.flush()
                shown = True
            yield item
    finally:  # also where the rest is not asked for
        if shown:
            stream.write("\r\x1b[K")
            stream.flush()
