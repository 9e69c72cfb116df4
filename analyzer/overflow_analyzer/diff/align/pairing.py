"""Which row of B is the counterpart of which row of A, where the two do not simply run side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.stream.block import KEY, UNCOUNTED_WALKS, Block, is_constant
from overflow_analyzer.diff.stream.grouping import run_starts

if TYPE_CHECKING:
    from collections.abc import Sequence


Indices = npt.NDArray[np.int64]

_LARGEST: Final = 2**62
_MOST_PLACES_A_KEY: Final = 8


def equal_rows(a: Block, b: Block, count: int, columns: Sequence[str]) -> int:
    """Return how many of the first ``count`` rows, before the first that differs in a column, are equal in both."""
    equal = np.ones(count, np.bool_)
    for name in columns:
        one, other = a[name][:count], b[name][:count]
        if is_constant(one) and is_constant(other) and count:
            equal &= bool(one[0] == other[0])
        else:
            equal &= one == other
    first = int(np.argmin(equal)) if count else 0
    return first if count and not equal[first] else count


def counterparts(a: Block, b: Block) -> tuple[Indices, Indices]:
    """Return the positions of paired rows in ``a``, ascending, and of their counterparts in ``b``."""
    return pair_keys(*pack_keys(_without_uncounted_calls(a), _without_uncounted_calls(b), KEY))


def pack_keys(a: Block, b: Block, columns: Sequence[str]) -> tuple[Indices, Indices]:
    """Return one int64 a row, of both blocks, equal where all columns are."""
    both: Indices = np.zeros(len(a) + len(b), np.int64)
    size = 1
    for name in columns:
        values = np.concatenate([a[name], b[name]])
        least, most = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        radix = most - least + 1
        if size * radix > _LARGEST:
            both = np.unique(both, return_inverse=True)[1].astype(np.int64)
            size = int(both.max(initial=0)) + 1
        if size * radix > _LARGEST:
            values, least = np.unique(values, return_inverse=True)[1], 0
            radix = int(values.max(initial=0)) + 1
        if radix > 1:
            both *= radix
            both += values
            both -= least
            size *= radix
    return both[: len(a)], both[len(a) :]


def pair_keys(a: Indices, b: Indices) -> tuple[Indices, Indices]:
    """Pair equal keys; where a key comes several times, the n-th on one side with the n-th on the other.

    Returns:
        Positions in ``a``, ascending, and of their counterparts in ``b``, shape [pairs] each.
    """
    direct = _pair_unique(a, b)
    if direct is not None:
        return direct
    in_a, in_b = np.argsort(a, kind="stable"), np.argsort(b, kind="stable")
    sorted_a, sorted_b = a[in_a], b[in_b]
    starts = run_starts(sorted_a)
    sizes = np.diff(starts, append=len(a))
    first = np.searchsorted(sorted_b, sorted_a[starts])
    candidates = np.arange(len(a)) + np.repeat(first - starts, sizes)  # the n-th of its key beside the n-th
    there = candidates < len(b)
    there[there] = sorted_b[candidates[there]] == sorted_a[there]
    rows_a, rows_b = in_a[there], in_b[candidates[there]]
    order: Any = np.argsort(rows_a)
    return rows_a[order], rows_b[order]


def _pair_unique(a: Indices, b: Indices) -> tuple[Indices, Indices] | None:
    """Pair keys through a table of all of them; None where one comes twice, or the table would be large."""
    size = max(int(a.max(initial=0)), int(b.max(initial=0))) + 1
    if size > _MOST_PLACES_A_KEY * (len(a) + len(b)):
        return None
    places = []
    for keys in (a, b):
        rows = np.arange(len(keys))
        place = np.full(size, -1)
        place[keys] = rows
        if (place[keys] != rows).any():  # of several assigned to one place, one stays
            return None
        places.append(place)
    in_b = places[1][a]
    rows_a = np.flatnonzero(in_b >= 0)
    return rows_a, in_b[rows_a]


def _without_uncounted_calls(block: Block) -> Block:
    """Leave out the index of calls that other calls are counted among.

    Recomputed frames and gradients take their place among a module's calls, so with and without checkpointing the same
    gradient has another index: there the n-th of an entry is the counterpart of the n-th.
    """
    counted_with_others = np.logical_or.reduce([block["walk"] == walk for walk in UNCOUNTED_WALKS])
    if not counted_with_others.any():
        return block
    return Block({**block.columns, "call": np.where(counted_with_others, 0, block["call"])})
