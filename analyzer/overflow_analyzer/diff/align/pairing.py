"""Which row of B is the counterpart of which row of A, where the two do not simply run side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.stream.block import KEY, UNCOUNTED_WALKS, Block, unlike
from overflow_analyzer.diff.stream.grouping import pack_keys, run_starts

if TYPE_CHECKING:
    from collections.abc import Sequence


Indices = npt.NDArray[np.int64]

_MOST_PLACES_A_KEY: Final = 8


def equal_rows(a: Block, b: Block, columns: Sequence[str]) -> int:
    """Return how many rows, before the first that differs in a column or is in one block alone, are equal in both."""
    count = min(len(a), len(b))
    different = unlike(a.take(slice(count)), b.take(slice(count)), columns)
    return int(np.argmax(np.append(different, True)))


def counterparts(a: Block, b: Block) -> tuple[Indices, Indices]:
    """Return the positions of paired rows in ``a``, ascending, and of their counterparts in ``b``."""
    a, b = _without_uncounted_calls(a), _without_uncounted_calls(b)
    keys = pack_keys((np.concatenate([a[name], b[name]]) for name in KEY), len(a) + len(b))
    return pair_keys(keys[: len(a)], keys[len(a) :])


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
