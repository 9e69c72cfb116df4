"""The frames of both runs around a divergence, side by side."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from overflow_analyzer.diff.align.pairing import counterparts
from overflow_analyzer.diff.model import FramePair
from overflow_analyzer.diff.stream.reading import READ_COLUMNS, SET_ASIDE

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from overflow_analyzer.diff.compare.comparing import ToleranceChecker
    from overflow_analyzer.diff.naming import Naming
    from overflow_analyzer.diff.stream.block import Block
    from overflow_analyzer.diff.stream.reading import BlockBuilder
    from overflow_analyzer.format.frames import Frame
    from overflow_analyzer.trace.rank_trace import RankTrace


_BEFORE, _AFTER = 2, 1
_COUNTED: Final = ("train", "eval", "manual")


class FramesAround:
    """Frames of one run around a place.

    Args:
        rank: Which run.
        frame_number: The place; -1 where this run has nothing there.
        builder: Of its blocks.
    """

    def __init__(self, rank: RankTrace, frame_number: int, builder: BlockBuilder) -> None:
        numbers = range(max(0, frame_number - _BEFORE), frame_number + _AFTER + 1) if frame_number >= 0 else range(0)
        codes = builder.module_codes
        found = [one for one in rank.frames(frames=numbers) if codes[one.module_name] != SET_ASIDE] if numbers else []
        batch = next((one.batch_number for one in found if one.frame_number == frame_number), None)
        self.frames: list[Frame] = [one for one in found if one.batch_number == batch]
        self.keys: list[Hashable] = [_key(one, codes) for one in self.frames]
        """What identifies each frame in both runs."""
        tables = rank.tables(READ_COLUMNS, batch=batch, frames=numbers) if numbers else ()
        some = [one for one in tables if one.num_rows]
        self.block: Block | None = None
        """Their rows; None where there are none."""
        if some:
            block = builder.block(pa.concat_tables(some).unify_dictionaries())
            self.block = block.take(block["module"] != SET_ASIDE)


def _key(frame: Frame, codes: Mapping[str, int]) -> Hashable:
    walk = "forward" if frame.phase in ("train", "eval") else frame.phase
    return codes[frame.module_name], frame.call_index if frame.phase in _COUNTED else None, walk


def read_frames_around(
    a: FramesAround, b: FramesAround, checker: ToleranceChecker, naming: Naming
) -> tuple[FramePair, ...]:
    """Lay frames side by side and mark the entries that differ by more than is tolerated.

    Args:
        a: Of A.
        b: Of B.
        checker: As in the comparison, knowing how coarse what came before was.
        naming: What codes stand for.
    """
    differing = _differing(a.block, b.block, checker, naming)
    pairs: list[FramePair] = []
    for tag, a_from, a_to, b_from, b_to in SequenceMatcher(None, a.keys, b.keys, autojunk=False).get_opcodes():
        some_a, some_b = a.frames[a_from:a_to], b.frames[b_from:b_to]
        if tag == "equal":
            marks = [frozenset(differing.get(one.frame_number, ())) for one in some_a]
            pairs += map(FramePair, some_a, some_b, marks)
        else:
            pairs += [FramePair(one, None) for one in some_a] + [FramePair(None, one) for one in some_b]
    return tuple(pairs)


def _differing(
    a: Block | None, b: Block | None, checker: ToleranceChecker, naming: Naming
) -> dict[int, set[tuple[str, str]]]:
    """Return frame_number in A -> role and context of the entries that differ."""
    found: dict[int, set[tuple[str, str]]] = {}
    if a is None or b is None:
        return found
    rows_a, rows_b = counterparts(a, b)
    paired = a.take(rows_a)
    differences = checker.compare(paired, b.take(rows_b))
    for row in differences.rows[differences.beyond].tolist():
        role, context = (naming.name(name, paired[name][row]) for name in ("role", "context"))
        found.setdefault(int(paired["frame"][row]), set()).add((role, context))
    return found
