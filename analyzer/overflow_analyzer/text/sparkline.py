"""A row of figures as one line of bars, ``▁▂▅█``, on a logarithmic scale; in ASCII where the encoding lacks bars."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = "_.-:=+*#"
_LEAST_BITS: Final = 1.0  # from the lowest bar to the highest: a change of a percent is no cliff


def shows_bars(stream: TextIO | None) -> bool:
    """Whether the encoding of ``stream`` has the characters of the bars."""
    try:
        _BARS.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False) -> str:
    """Return figures as at most ``width`` characters.

    Args:
        values: Magnitudes in order. Where they are more than ``width``, neighbours become one: the largest, nan above
            inf above all.
        width: Characters at most.
        ascii_only: Whether the bars are ASCII.

    Returns:
        A bar a figure. Its height is the logarithm of the figure, between those of the smallest and the largest finite
        figure above 0, which are taken to be at least a factor of 2 apart. None is a space, 0 is ``0``, inf is ``I``,
        nan is ``N``.
    """
    merged = list(values)
    if len(values) > width:
        bounds = [len(values) * at // width for at in range(width + 1)]
        merged = [_largest(values[start:stop]) for start, stop in itertools.pairwise(bounds)]
    heights = [math.log2(one) for one in merged if one is not None and 0 < one < math.inf]
    bars = _ASCII_BARS if ascii_only else _BARS
    low, high = min(heights, default=0.0), max(heights, default=0.0)
    middle, span = (low + high) / 2, max(high - low, _LEAST_BITS)
    low, high = middle - span / 2, middle + span / 2
    return "".join(_character(one, low, high, bars) for one in merged)


def _largest(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return math.nan if any(map(math.isnan, known)) else max(known, default=None)


def _character(value: float | None, low: float, high: float, bars: str) -> str:
    if value is None:
        return " "
    if not math.isfinite(value):
        return "N" if math.isnan(value) else "I"
    if value <= 0:
        return "0"
    share = (math.log2(value) - low) / (high - low)
    return bars[min(len(bars) - 1, int(share * len(bars)))]
