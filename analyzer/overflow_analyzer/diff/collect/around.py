"""The frames of both runs around a divergence, side by side."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from overflow_analyzer.diff.align.pairing import counterparts
from overflow_analyzer.diff.compare.comparing import ToleranceChecker
from overflow_analyzer.diff.model import FramePair
from overflow_analyzer.diff.stream.reading import READ_COLUMNS, SET_ASIDE

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from overflow_analyzer.diff.align.vocabulary import Shapes
    from overflow_analyzer.diff.compare.tolerance import Tolerance
    from overflow_analyzer.diff.stream.block import Block
    from overflow_analyzer.diff.stream.reading import SharedNames, Side
    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.trace.rank_trace import RankTrace


_BEFORE, _AFTER = 2, 1
_COUNTED: Final = ("train", "eval", "manual")


class FramesAround:
    """Frames of one run around a place.

    Args:
        rank: Which run.
        frame_number: The place; -1 where this run has nothing there.
        side: How its rows become blocks.
        codes: Of its modules.
    """

    def __init__(self, rank: RankTrace, frame_number: int, side: Side, codes: Mapping[str, int]) -> None:
        numbers = range(max(0, frame_number - _BEFORE), frame_number + _AFTER + 1) if frame_number >= 0 else range(0)
        found = [one for one in rank.frames(frames=numbers) if codes[one.module_name] != SET_ASIDE] if numbers else []
        batch = next((one.batch_number for one in found if one.frame_number == frame_number), None)
        self.frames: list[Frame] = [one for one in found if one.batch_number == batch]
        tables = rank.tables(READ_COLUMNS, batch=batch, frames=numbers) if numbers else ()
        self._tables = [one for one in tables if one.num_rows]
        self._side, self._codes = side, codes

    @property
    def shapes(self) -> Shapes:
        """What the shapes of its rows stand for."""
        return self._side.shapes

    def keys(self) -> list[Hashable]:
        """Return what identifies a frame in both runs."""
        return [
            (self._codes[one.module_name], one.call_index if one.phase in _COUNTED else None, walk)
            for one in self.frames
            for walk in ["forward" if one.phase in ("train", "eval") else one.phase]
        ]

    def block(self, offset: int) -> Block | None:
        """Return the frames' rows, batch numbers shifted; None where there are none."""
        if not self._tables:
            return None
        block = self._side.block(pa.concat_tables(self._tables).unify_dictionaries(), offset)
        return block.take(block["module"] != SET_ASIDE)


def read_frames_around(
    a: FramesAround, b: FramesAround, *, offset: int, names: SharedNames, tolerance: Tolerance, coarseness: float
) -> tuple[FramePair, ...]:
    """Lay frames side by side and mark the entries that differ by more than is tolerated.

    Args:
        a: Of A.
        b: Of B.
        offset: Subtracted from B's batch numbers.
        names: Behind the codes.
        tolerance: As in the comparison.
        coarseness: Of what came before.
    """
    checker = ToleranceChecker(tolerance, names.dtypes, names.roles, (a.shapes, b.shapes), coarseness=coarseness)
    differing = _differing(a.block(0), b.block(offset), names, checker)
    pairs: list[FramePair] = []
    for _, a_from, a_to, b_from, b_to in SequenceMatcher(None, a.keys(), b.keys(), autojunk=False).get_opcodes():
        pairs += _side_by_side(
            a.frames[a_from:a_to], b.frames[b_from:b_to], a.keys()[a_from:a_to], b.keys()[b_from:b_to]
        )
    return tuple(
        FramePair(pair.a, pair.b, frozenset(differing.get(pair.a.frame_number, ()))) if pair.a and pair.b else pair
        for pair in pairs
    )


def _side_by_side(
    a: Sequence[Frame], b: Sequence[Frame], keys_a: Sequence[Hashable], keys_b: Sequence[Hashable]
) -> list[FramePair]:
    if keys_a == keys_b:
        return [FramePair(one, other) for one, other in zip(a, b, strict=True)]
    return [*(FramePair(one, None) for one in a), *(FramePair(None, one) for one in b)]


def _differing(
    a: Block | None, b: Block | None, names: SharedNames, checker: ToleranceChecker
) -> dict[int, set[tuple[str, str]]]:
    """Return frame_number in A -> role and context of the entries that differ."""
    found: dict[int, set[tuple[str, str]]] = {}
    if a is None or b is None:
        return found
    rows_a, rows_b = counterparts(a, b)
    paired = a.take(rows_a)
    differences = checker.compare(paired, b.take(rows_b))
    for row in differences.rows[differences.beyond].tolist():
        entry = names.roles.names[paired["role"][row]], names.contexts.names[paired["context"][row]]
        found.setdefault(int(paired["frame"][row]), set()).add(entry)
    return found
