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

    def mirrored(self) -> Region:
        """Return the same with A called B."""
        before = None if self.before is None else self.before[::-1]
        return Region(self.b, self.a, self.rows_b, self.rows_a, before, self.after_b, self.after_a)


class _Buffer:
    """What was read of one stream and is not compared yet."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self.block = Block({"batch": np.zeros(0, np.int64)})
        self.ended = False

    def fill(self) -> bool:
        """Read one more block where no row is left; return whether there are rows."""
        if not len(self.block):
            self._read()
        return len(self.block) > 0

    def _read(self) -> None:
        block = next(self._blocks, None)
        if block is None:
            self.ended = True
        else:
            self.block = Block.concatenate([self.block, block]) if len(self.block) else block

    def pop(self, rows: int) -> Block:
        """Return the first rows and forget them."""
        first, self.block = self.block.take(slice(rows)), self.block.take(slice(rows, None))
        return first

    def whole_batches(self) -> int:
        """Return how many rows, from the first, are in whole batches; reads until there are some."""
        while not self.ended:
            last_start = int(run_starts(self.block["batch"])[-1])
            if last_start:
                return last_start
            self._read()
        return len(self.block)


def regions(a: Iterator[Block], b: Iterator[Block]) -> Iterator[Region]:
    """Yield regions in order until both streams have ended; every row is in exactly one.

    Args:
        a: Blocks of one rank, none empty, in order.
        b: Of the other trace, batch numbers already shifted.
    """
    left, right = _Buffer(a), _Buffer(b)
    before: tuple[Block, Block] | None = None
    while left.fill() and right.fill():
        stretch = min(len(left.block), len(right.block))
        equal = equal_rows(left.block, right.block, KEY)
        if equal < stretch:  # up to where the batch of the first difference begins
            equal = min(int(run_starts(side.block["batch"][: equal + 1])[-1]) for side in (left, right))
        if equal:
            one, other = left.pop(equal), right.pop(equal)
            last = slice(equal - 1, equal)
            before = one.take(last), other.take(last)
            yield Region(one, other, None, None)
        if equal < stretch:
            yield _joined(left, right, before)
            before = None
    none = np.zeros(0, np.int64)
    while left.fill():
        block = left.pop(len(left.block))
        yield Region(block, block.take(slice(0)), none, none, before)
    while right.fill():
        block = right.pop(len(right.block))
        yield Region(block.take(slice(0)), block, none, none, before)


def _joined(left: _Buffer, right: _Buffer, before: tuple[Block, Block] | None) -> Region:
    a, b = (buffer.pop(count) for buffer, count in zip((left, right), _rows_to_join(left, right), strict=True))
    after_a, after_b = (buffer.block.take(slice(1)) if buffer.fill() else None for buffer in (left, right))
    return Region(a, b, *_pair(a, b), before, after_a, after_b)


def _rows_to_join(left: _Buffer, right: _Buffer) -> list[int]:
    """Whole batches up to the last that both have whole: no later row can belong to any of them."""
    buffers = left, right
    counts = [buffer.whole_batches() for buffer in buffers]
    batches = [buffer.block["batch"][:count] for buffer, count in zip(buffers, counts, strict=True)]
    limits = [
        one[-1]
        for one, buffer in zip(batches, buffers, strict=True)
        if not (buffer.ended and len(one) == len(buffer.block))
    ]
    beyond = [np.append(one > min(limits), True) for one in batches] if limits else []
    within = [int(np.argmax(one)) for one in beyond]
    # Batch numbers that go backwards could leave nothing within the limit: then all that is whole goes at once.
    return within if any(within) else counts


def _pair(a: Block, b: Block) -> tuple[Indices, Indices]:
    rows_a, rows_b = counterparts(a, b)
    # In order of execution, and in one that does not depend on which trace is called A.
    position, batch = a["in_batch"][rows_a].astype(np.int64) + b["in_batch"][rows_b], a["batch"][rows_a]
    falls = (position[1:] < position[:-1]) & (batch[1:] == batch[:-1])
    if not falls.any() and not (batch[1:] < batch[:-1]).any():  # as it is where nothing changed places
        return rows_a, rows_b
    order: Any = np.lexsort((rows_a, position, batch))
    return rows_a[order], rows_b[order]
