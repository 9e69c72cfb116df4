"""Rows without a counterpart: did the other run not have it, or was it only not recorded there?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.stream.block import MANUAL, RECOMPUTE, Block
from overflow_analyzer.diff.stream.grouping import run_starts

if TYPE_CHECKING:
    from overflow_analyzer.diff.align.regions import Region
    from overflow_analyzer.diff.model import Reason, Side


Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

REASONS: Final[tuple[Reason, ...]] = ("structure", "batch", "window", "recompute", "role")
_STRUCTURE, _BATCH, _WINDOW, _RECOMPUTE, _ROLE = range(len(REASONS))


@dataclass(frozen=True)
class Recorded:
    """What a run was asked to record, as codes, and how it ended."""

    roles: frozenset[int]
    ends_whole: bool
    """Whether its last batch is whole: the loop was done, or was stopped at the end of a batch."""


@dataclass(frozen=True)
class Unmatched:
    """Rows of one side without a counterpart; columns of equal length."""

    side: Side
    rows: Block
    reason: npt.NDArray[np.int8]
    """Position in ``REASONS``."""
    position: npt.NDArray[np.float64]
    """Where in its batch a row stands, on the scale of the sum of both sides' frame_in_batch."""
    whole_frame: Flags
    """Whether nothing of the row's frame has a counterpart."""
    beside: Indices
    """frame_number, on the other side, of the last pair before it in its batch; -1 where there is none."""

    def take(self, keep: Flags) -> Unmatched:
        """Return some of the rows."""
        return Unmatched(
            self.side,
            self.rows.take(keep),
            self.reason[keep],
            self.position[keep],
            self.whole_frame[keep],
            self.beside[keep],
        )


def unmatched_rows(region: Region, recorded: Recorded, side: Side) -> Unmatched | None:
    """Return the rows of one side that have no counterpart; None where there are none.

    Args:
        region: With both sides' rows.
        recorded: Of the other side.
        side: Which one.
    """
    region = region if side == "a" else region.mirrored()
    own, other, before = region.a, region.b, region.before
    if region.rows_a is None or region.rows_b is None or len(region.rows_a) == len(own):
        return None
    partner: Indices = np.full(len(own), -1)
    partner[region.rows_a] = region.rows_b
    unmatched = np.flatnonzero(partner < 0)
    rows = own.take(unmatched)
    every = np.arange(len(own))
    before_each = np.maximum.accumulate(np.where(partner >= 0, every, -1))[unmatched]
    after_each = np.minimum.accumulate(np.where(partner >= 0, every, len(own))[::-1])[::-1][unmatched]
    previous = _nearest_pairs(own, other, partner, unmatched, before_each)
    following = _nearest_pairs(own, other, partner, unmatched, after_each)
    if before is not None:
        continued = ~previous.there & (rows["batch"] == before[0]["batch"][0])
        previous.there[continued] = True
        for name, column in (("frame", previous.frame), ("segment", previous.segment), ("in_batch", previous.in_batch)):
            column[continued] = before[1][name][0]

    edges = _edges(other, before, region.after_b, recorded, rows["batch"])
    left = np.where(previous.there, previous.segment, edges.first_segment)
    right = np.where(following.there, following.segment, edges.last_segment)
    gapless = (previous.there | edges.starts_whole) & (following.there | edges.ends_whole) & (left == right)
    reason = np.where(gapless, _STRUCTURE, _WINDOW)
    reason[(rows["walk"] == MANUAL) | ~np.isin(rows["role"], list(recorded.roles))] = _ROLE
    reason[rows["walk"] == RECOMPUTE] = _RECOMPUTE
    reason[~edges.present] = _BATCH

    in_paired_frame = previous.same_frame | following.same_frame
    pair_place = np.where(previous.same_frame, previous.in_batch, following.in_batch)
    between = np.where(previous.there, previous.in_batch, -1) + 0.5
    return Unmatched(
        side,
        rows,
        reason.astype(np.int8),
        position=rows["in_batch"] + np.where(in_paired_frame, pair_place, between),
        whole_frame=~in_paired_frame,
        beside=np.where(previous.there, previous.frame, -1),
    )


class _NearestPairs(NamedTuple):
    """The nearest pair before, or after, each row, in the same batch; its place is that on the other side."""

    there: Flags
    same_frame: Flags
    """Whether it is of the row's own frame."""
    frame: Indices
    segment: Indices
    in_batch: Indices


def _nearest_pairs(own: Block, other: Block, partner: Indices, rows: Indices, at: Indices) -> _NearestPairs:
    """Return what stands at ``at``, positions of paired rows, or beyond either end where there is none."""
    inside = (at >= 0) & (at < len(own))
    at = np.where(inside, at, 0)
    there = inside & (own["batch"][at] == own["batch"][rows])
    same_frame = there & (own["frame"][at] == own["frame"][rows])
    if not len(other):
        none = np.zeros((3, len(rows)), np.int64)
        return _NearestPairs(there, same_frame, *none)
    places = np.where(there, partner[at], 0)
    return _NearestPairs(there, same_frame, other["frame"][places], other["segment"][places], other["in_batch"][places])


class _Edges(NamedTuple):
    """How the other side's rows of given batches begin and end."""

    present: Flags
    first_segment: Indices
    last_segment: Indices
    starts_whole: Flags
    ends_whole: Flags


def _edges(
    other: Block, before: tuple[Block, Block] | None, following: Block | None, recorded: Recorded, batches: Indices
) -> _Edges:
    rows = other if before is None else Block.concatenate([before[1], other])
    if not len(rows):
        nothing, none = np.zeros(len(batches), bool), np.zeros(len(batches), np.int64)
        return _Edges(nothing, none, none, nothing, nothing)
    runs = run_starts(rows["batch"])
    run_ends = np.append(runs[1:], len(rows)) - 1
    known, first = np.unique(rows["batch"][runs], return_index=True)
    last = len(runs) - 1 - np.unique(rows["batch"][runs][::-1], return_index=True)[1]
    at = np.minimum(np.searchsorted(known, batches), len(known) - 1)
    starts, ends = runs[first][at], run_ends[last][at]
    next_segment = np.append(rows["segment"][1:], following["segment"] if following is not None else [-1])
    whole_ends = next_segment == rows["segment"]
    whole_ends[-1] |= following is None and recorded.ends_whole
    return _Edges(
        present=known[at] == batches,
        first_segment=rows["segment"][starts],
        last_segment=rows["segment"][ends],
        starts_whole=rows["in_batch"][starts] == 0,
        ends_whole=whole_ends[ends],
    )
