"""One rank of one trace -> blocks in the order of the run, the next one read while the present one is compared."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import numpy as np

from overflow_analyzer.diff.align.vocabulary import Shapes, Translation, Vocabulary
from overflow_analyzer.diff.stream.block import (
    BACKWARD,
    COUNTS,
    FIGURES,
    FORWARD,
    MANUAL,
    RECOMPUTE,
    UNKNOWN,
    Block,
    constant,
)
from overflow_analyzer.format.arrays import numbers
from overflow_analyzer.format.columns import COUNT_COLUMNS, KINDS, PHASES, ROLES
from overflow_analyzer.format.frames import IGNORED_NOTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from overflow_analyzer.trace.rank_trace import RankTrace


SET_ASIDE: Final = -1
"""The code of a module whose rows are not compared: a wrapper that the other run does not have."""

_WALKS: Final = {"train": FORWARD, "eval": FORWARD, "recompute": RECOMPUTE, "backward": BACKWARD, "manual": MANUAL}
_ALWAYS: Final = (
    "batch_number", "frame_number", "frame_in_batch", "call_index", "module_name", "phase", "role", "context", "kind",
    "dtype", "shape", "abs_min", "abs_max", "optimizer_step",
)  # fmt: skip
_NONFINITE: Final = ("finite_abs_max", *COUNT_COLUMNS, "note")
_FULL: Final = tuple(name for name in (*FIGURES, *COUNTS) if name not in (*_ALWAYS, *_NONFINITE))
_UNKNOWN_FIGURE: Final = np.float64(UNKNOWN)
_NONE: Final = np.int64(0)
_ROWS_A_BLOCK: Final = 1 << 17
READ_COLUMNS: Final = (*_ALWAYS, *_FULL, *_NONFINITE)
_NAMES: Final = ("phase", "role", "context", "kind", "dtype")
_INTEGERS: Final = {
    "batch": "batch_number",
    "frame": "frame_number",
    "in_batch": "frame_in_batch",
    "call": "call_index",
    "step": "optimizer_step",
}


SharedNames = Mapping[str, Vocabulary]
"""The names of both traces, by the column of a block that holds their codes."""


def shared_names(modules: Iterable[str]) -> SharedNames:
    """Return the names that are known before anything is read."""
    known = {"module": modules, "role": ROLES, "phase": PHASES, "kind": KINDS, "context": (), "dtype": ()}
    return {column: Vocabulary(names) for column, names in known.items()}


class UnseenModuleError(Exception):
    """A module that was not there when modules were matched; caught within this package."""


class BlockBuilder:
    """Turns tables of one trace into blocks.

    Args:
        names: Shared with the other trace.
        module_codes: Of every module of this trace, ``SET_ASIDE`` for those not to compare.
        offset: Subtracted from the batch numbers.
    """

    def __init__(self, names: SharedNames, module_codes: Mapping[str, int], offset: int = 0) -> None:
        self.module_codes = module_codes
        self.offset = offset
        self.shapes = Shapes()
        self._names = {column: (column, Translation(names[column].code)) for column in _NAMES}
        self._names["module"] = ("module_name", Translation(self._module_code))
        self._names["walk"] = ("phase", Translation(lambda phase: _WALKS.get(phase, FORWARD)))
        self._ignored = Translation(lambda note: int(IGNORED_NOTE in note.split("; ")))

    def _module_code(self, name: str) -> int:
        try:
            return self.module_codes[name]
        except KeyError:
            raise UnseenModuleError(name) from None

    def block(self, table: pa.Table) -> Block:
        """Return a table's rows, without segments.

        Args:
            table: With ``READ_COLUMNS``, or without those that only non-finite tensors need.

        Raises:
            UnseenModuleError: A module has no code.
        """
        columns = {name: numbers(table, source) for name, source in _INTEGERS.items()}
        columns["batch"] = columns["batch"] - self.offset if self.offset else columns["batch"]
        columns |= {name: translate(table[source]) for name, (source, translate) in self._names.items()}
        columns["shape"] = self.shapes(table["shape"])
        count, present = table.num_rows, table.column_names
        for name in (*FIGURES, *COUNTS):
            unknown = name not in present or table[name].null_count == count
            columns[name] = constant(_UNKNOWN_FIGURE, count) if unknown else numbers(table, name, UNKNOWN)
        if "note" in present:
            columns["ignored"] = self._ignored(table["note"]) == 1
        else:
            columns |= {name: constant(_NONE, count) for name in COUNT_COLUMNS}
            columns |= {"ignored": constant(np.False_, count), "finite_abs_max": columns["abs_max"]}
        return Block(columns)


def read_blocks(
    rank: RankTrace, builder: BlockBuilder, *, batch: int | None = None, full_statistics: bool = True
) -> Iterator[Block]:
    """Yield the rows of one rank in order, whole frames, some 100,000 rows a block where there are so many.

    Args:
        rank: What to read.
        builder: Of its trace.
        batch: The only batch wanted, in the blocks' numbers. Row groups that have neither it nor the one after it
            (which shows whether it is whole) are not read.
        full_statistics: Whether to read the figures that are only there where they were asked for.

    Raises:
        DamagedTraceError: A row group cannot be read.
    """
    tables = _tables(
        rank, None if batch is None else batch + builder.offset, (*_ALWAYS, *_FULL) if full_statistics else _ALWAYS
    )
    blocks = _joined(_blocks(tables, builder))
    reader = ThreadPoolExecutor(max_workers=1)
    try:
        # One block ahead: what is being compared and what is being read, never more.
        ahead = reader.submit(next, blocks, None)
        while (block := ahead.result()) is not None:
            ahead = reader.submit(next, blocks, None)
            yield block
    finally:
        # Without waiting: a generator that an error abandoned is closed by the garbage collector, on any thread and at
        # any time, where a wait for another thread can be a deadlock.
        reader.shutdown(wait=False, cancel_futures=True)


def _tables(rank: RankTrace, batch: int | None, wanted: tuple[str, ...]) -> Iterator[pa.Table]:
    for group in rank.row_groups:
        if batch is None or group.first_batch - 1 <= batch <= group.last_batch:
            yield from rank.pieces(group, wanted if group.finite else (*wanted, *_NONFINITE))
    yield rank.ring


def _blocks(tables: Iterator[pa.Table], builder: BlockBuilder) -> Iterator[Block]:
    segment, last_frame = 0, None
    for table in tables:
        if not table.num_rows:
            continue
        block = builder.block(table)
        frames = block["frame"]
        jumps = np.diff(frames, prepend=frames[0] if last_frame is None else last_frame) > 1
        if jumps.any():
            block.columns["segment"] = np.cumsum(jumps) + segment
        else:
            block.columns["segment"] = constant(np.int64(segment), len(frames))
        segment, last_frame = int(block["segment"][-1]), frames[-1]
        aside = block["module"] == SET_ASIDE
        if aside.any():
            block = block.take(~aside)
        if len(block):
            yield block


def _joined(blocks: Iterator[Block]) -> Iterator[Block]:
    """Cut the blocks anew, between frames, and join small ones.

    Three threads that pass the interpreter on after every short step lose half of their time.
    """
    held: list[Block] = []
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) >= _ROWS_A_BLOCK:
            joined = Block.concatenate(held)
            cut = int(np.searchsorted(joined["frame"], joined["frame"][-1]))
            if cut:
                yield joined.take(slice(cut))
            held = [joined.take(slice(cut, None))]
    if held:
        yield Block.concatenate(held)
