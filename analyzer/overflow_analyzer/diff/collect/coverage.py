"""Rows without a counterpart: did the other run not have it, or was it only not recorded there?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.stream.block import MANUAL, RECOMPUTE, Block
from overflow_analyzer.diff.stream.grouping import run_starts

if TYPE_CHECKING:
    from overflow_analyzer.diff.align.regions import Region
    from overflow_analyzer.diff.model import Reason


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
            self.rows.take(keep), self.reason[keep], self.position[keep], self.whole_frame[keep], self.beside[keep]
        )


def unmatched_rows(region: Region, recorded: Recorded, *, of_a: bool) -> Unmatched | None:
    """Return the rows of one side that have no counterpart; None where there are none.

    Args:
        region: With both sides' rows.
        recorded: Of the other side.
        of_a: Whether rows of A are asked for.
    """
    own, other = (region.a, region.b) if of_a else (region.b, region.a)
    rows = (region.rows_a, region.rows_b) if of_a else (region.rows_b, region.rows_a)
    if rows[0] is None or rows[1] is None or len(rows[0]) == len(own):
        return None
    partner: Indices = np.full(len(own), -1)
    partner[rows[0]] = rows[1]
    unmatched = np.flatnonzero(partner < 0)
    before = region.before if region.before is None or of_a else (region.before[1], region.before[0])
    following = region.after_b if of_a else region.after_a
    neighbours = _Neighbours(own, other, partner, unmatched, before)
    edges = _Edges(other, before, following, recorded, own["batch"][unmatched])
    reason = np.where(neighbours.recorded_through(edges), _STRUCTURE, _WINDOW)
    reason[(own["walk"][unmatched] == MANUAL) | ~np.isin(own["role"][unmatched], list(recorded.roles))] = _ROLE
    reason[own["walk"][unmatched] == RECOMPUTE] = _RECOMPUTE
    reason[~edges.present] = _BATCH
    return Unmatched(
        own.take(unmatched),
        reason.astype(np.int8),
        neighbours.position(),
        ~neighbours.in_paired_frame,
        neighbours.beside,
    )


class _Neighbours:
    """The nearest paired rows before and after each row, in the same batch."""

    def __init__(
        self, own: Block, other: Block, partner: Indices, unmatched: Indices, before: tuple[Block, Block] | None
    ) -> None:
        every = np.arange(len(own))
        previous = np.maximum.accumulate(np.where(partner >= 0, every, -1))[unmatched]
        following = np.minimum.accumulate(np.where(partner >= 0, every, len(own))[::-1])[::-1][unmatched]
        batches, frames = own["batch"][unmatched], own["frame"][unmatched]
        self.has_previous = (previous >= 0) & (own["batch"][previous] == batches)
        self.has_next = following < len(own)
        following = np.where(self.has_next, following, 0)
        self.has_next &= own["batch"][following] == batches
        self._own_place = own["in_batch"][unmatched]
        self._previous_segment = _at(other, "segment", partner[previous], self.has_previous)
        self._previous_place = _at(other, "in_batch", partner[previous], self.has_previous) + 0.5
        self._next_segment = _at(other, "segment", partner[following], self.has_next)
        self.beside: Indices = np.where(
            self.has_previous, _at(other, "frame", partner[previous], self.has_previous), -1
        )
        same_previous = self.has_previous & (own["frame"][previous] == frames)
        same_next = self.has_next & (own["frame"][following] == frames)
        self.in_paired_frame = same_previous | same_next
        self._pair_place = np.where(
            same_previous,
            _at(other, "in_batch", partner[previous], self.has_previous),
            _at(other, "in_batch", partner[following], self.has_next),
        )
        if before is not None:
            continued = ~self.has_previous & (batches == before[0]["batch"][0])
            self.has_previous |= continued
            self._previous_segment[continued] = before[1]["segment"][0]
            self.beside[continued] = before[1]["frame"][0]
            self._previous_place[continued] = before[1]["in_batch"][0] + 0.5

    def recorded_through(self, edges: _Edges) -> Flags:
        """Return which rows lie in a stretch that the other run recorded without a gap."""
        left = np.where(self.has_previous, self._previous_segment, edges.first_segment)
        right = np.where(self.has_next, self._next_segment, edges.last_segment)
        begun, ended = self.has_previous | edges.starts_whole, self.has_next | edges.ends_whole
        gapless: Flags = begun & ended & (left == right)
        return gapless

    def position(self) -> npt.NDArray[np.float64]:
        """Return the rows' places among the pairs: with their frame's, or half a frame after the pair before."""
        between = np.where(self.has_previous, self._previous_place, -0.5)
        place: npt.NDArray[np.float64] = self._own_place + np.where(self.in_paired_frame, self._pair_place, between)
        return place


class _Edges:
    """How the other side's rows of given batches begin and end."""

    def __init__(
        self,
        other: Block,
        before: tuple[Block, Block] | None,
        following: Block | None,
        recorded: Recorded,
        batches: Indices,
    ) -> None:
        rows = other if before is None else Block.concatenate([before[1], other])
        runs = run_starts(rows["batch"])
        run_ends = np.append(runs[1:], len(rows))[: len(runs)] - 1
        known, first = np.unique(rows["batch"][runs], return_index=True)
        starts = runs[first]
        ends = run_ends[::-1][np.unique(rows["batch"][runs][::-1], return_index=True)[1]]
        at = np.minimum(np.searchsorted(known, batches), max(len(known) - 1, 0))
        self.present: Flags = known[at] == batches if len(known) else np.zeros(len(batches), bool)
        next_segment = np.append(rows["segment"][1:], following["segment"] if following is not None else [-1])
        whole_ends = next_segment == rows["segment"]
        if following is None and recorded.ends_whole and len(rows):
            whole_ends[-1] = True
        self.first_segment = self._of(rows["segment"], starts, at)
        self.last_segment = self._of(rows["segment"], ends, at)
        self.starts_whole: Flags = self._of(rows["in_batch"] == 0, starts, at)
        self.ends_whole: Flags = self._of(whole_ends, ends, at)

    def _of(self, column: npt.NDArray[Any], rows: Indices, at: Indices) -> Any:
        if not len(rows):
            return np.zeros(len(at), column.dtype)
        return column[rows][at]


def _at(block: Block, name: str, rows: Indices, valid: Flags) -> npt.NDArray[Any]:
    """Return a column at rows, and anything where they are not valid."""
    if not len(block):
        return np.zeros(len(rows), block[name].dtype)
    found: npt.NDArray[Any] = block[name][np.where(valid, rows, 0)]
    return found
