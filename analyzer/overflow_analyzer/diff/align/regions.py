"""Two streams of blocks -> regions in which the counterpart of every row is known.

Where the keys of both run side by side, which they do in two runs of one model, nothing is sorted or looked up: the
longest equal stretch is one region. Where they part, the whole batches that both have read are joined by key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.align.pairing import counterparts, equal_rows
from overflow_analyzer.diff.stream.block import KEY, Block
from overflow_analyzer.diff.stream.grouping import run_starts

if TYPE_CHECKING:
    from collections.abc import Iterator


Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Region:
    """Rows of both traces, and which belong together."""

    a: Block
    b: Block
    rows_a: Indices | None
    """Positions in ``a``, in order of execution; None where row i of ``a`` belongs to row i of ``b``."""
    rows_b: Indices | None
    before: tuple[Block, Block] | None = None
    """The last pair before the region, one row each, where the batch had begun already."""
    after_a: Block | None = None
    """The row of A that comes next, where there is one."""
    after_b: Block | None = None

    def paired(self) -> tuple[Block, Block]:
        """Return two blocks whose rows i belong together, in order of execution."""
        if self.rows_a is None or self.rows_b is None:
            return self.a, self.b
        return self.a.take(self.rows_a), self.b.take(self.rows_b)


class _Buffer:
    """What was read of one stream and is not compared yet."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self.block: Block | None = None
        self.ended = False
        self.read()

    def read(self) -> None:
        """Read one more block, where there is one."""
        block = next(self._blocks, None)
        if block is None:
            self.ended = True
        elif self.block is None:
            self.block = block
        else:
            self.block = Block.concatenate([self.block, block])

    def pass_over(self, rows: int) -> None:
        """Forget the first rows."""
        if self.block is not None:
            self.block = self.block.take(slice(rows, None)) if rows < len(self.block) else None
        if self.block is None and not self.ended:
            self.read()

    def whole_batches(self) -> int:
        """Return how many rows, from the first, are in whole batches; reads until there are some."""
        while self.block is not None:
            if self.ended:
                return len(self.block)
            last_start = int(run_starts(self.block["batch"])[-1])
            if last_start:
                return last_start
            self.read()
        return 0


def regions(a: Iterator[Block], b: Iterator[Block]) -> Iterator[Region]:
    """Yield regions in order until both streams have ended; every row is in exactly one.

    Args:
        a: Blocks of one rank, none empty, in order.
        b: Of the other trace, batch numbers already shifted.
    """
    left, right = _Buffer(a), _Buffer(b)
    before: tuple[Block, Block] | None = None
    while left.block is not None and right.block is not None:
        stretch = min(len(left.block), len(right.block))
        equal = equal_rows(left.block, right.block, stretch, KEY)
        if equal < stretch:
            batches = (side.block["batch"][: equal + 1] for side in (left, right) if side.block is not None)
            equal = min(int(run_starts(one)[-1]) for one in batches)  # where the batch of the first difference begins
        if equal:
            one, other = left.block.take(slice(equal)), right.block.take(slice(equal))
            last = slice(equal - 1, equal)
            before = one.take(last), other.take(last)
            yield Region(one, other, None, None)
            left.pass_over(equal)
            right.pass_over(equal)
        if equal < stretch:
            yield _joined(left, right, before)
            before = None
    for buffer in (left, right):
        while buffer.block is not None:
            yield _unmatched(buffer.block, is_a=buffer is left, before=before)
            buffer.pass_over(len(buffer.block))


def _joined(left: _Buffer, right: _Buffer, before: tuple[Block, Block] | None) -> Region:
    count_a, count_b = _rows_to_join(left, right)
    a, b = _first(left, count_a), _first(right, count_b)
    rows_a, rows_b = _pair(a, b)
    left.pass_over(count_a)
    right.pass_over(count_b)
    return Region(a, b, rows_a, rows_b, before, _next_row(left), _next_row(right))


def _rows_to_join(left: _Buffer, right: _Buffer) -> tuple[int, int]:
    """Whole batches up to the last that both have whole: no later row can belong to any of them."""
    counts = left.whole_batches(), right.whole_batches()
    batches = [_first(buffer, count)["batch"] for buffer, count in zip((left, right), counts, strict=True)]
    limits = [
        one[-1]
        for one, buffer, count in zip(batches, (left, right), counts, strict=True)
        if buffer.block is not None and not (buffer.ended and count == len(buffer.block))
    ]
    if not limits:
        return counts
    within = [_rows_up_to(one, min(limits)) for one in batches]
    # Batch numbers that go backwards could leave nothing within the limit: then all that is whole goes at once.
    return (within[0], within[1]) if any(within) else counts


def _rows_up_to(batches: Indices, limit: Any) -> int:
    beyond = np.flatnonzero(batches > limit)
    return int(beyond[0]) if len(beyond) else len(batches)


def _first(buffer: _Buffer, count: int) -> Block:
    if buffer.block is None:
        raise RuntimeError("a buffer that has ended has no rows")
    return buffer.block.take(slice(count))


def _next_row(buffer: _Buffer) -> Block | None:
    return None if buffer.block is None else buffer.block.take(slice(1))


def _pair(a: Block, b: Block) -> tuple[Indices, Indices]:
    rows_a, rows_b = counterparts(a, b)
    # In order of execution, and in one that does not depend on which trace is called A.
    position, batch = a["in_batch"][rows_a].astype(np.int64) + b["in_batch"][rows_b], a["batch"][rows_a]
    falls = (position[1:] < position[:-1]) & (batch[1:] == batch[:-1])
    if not falls.any() and not (batch[1:] < batch[:-1]).any():  # as it is where nothing changed places
        return rows_a, rows_b
    order: Any = np.lexsort((rows_a, position, batch))
    return rows_a[order], rows_b[order]


def _unmatched(block: Block, *, is_a: bool, before: tuple[Block, Block] | None) -> Region:
    nothing, none = block.take(slice(0)), np.zeros(0, np.int64)
    a, b = (block, nothing) if is_a else (nothing, block)
    return Region(a, b, none, none, before)
