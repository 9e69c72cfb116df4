"""One rank of one trace -> blocks in the order of the run, the next one read while the present one is compared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
from overflow_analyzer.format.parts import stream_row_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
_INTEGERS: Final = {
    "batch": "batch_number",
    "frame": "frame_number",
    "in_batch": "frame_in_batch",
    "call": "call_index",
    "step": "optimizer_step",
}


@dataclass(frozen=True)
class SharedNames:
    """The names of both traces."""

    modules: Vocabulary = field(default_factory=Vocabulary)
    roles: Vocabulary = field(default_factory=lambda: Vocabulary(ROLES))
    phases: Vocabulary = field(default_factory=lambda: Vocabulary(PHASES))
    kinds: Vocabulary = field(default_factory=lambda: Vocabulary(KINDS))
    contexts: Vocabulary = field(default_factory=Vocabulary)
    dtypes: Vocabulary = field(default_factory=Vocabulary)


class UnseenModuleError(Exception):
    """A module that was not there when modules were matched; caught within this package."""


class Side:
    """How the rows of one trace become blocks.

    Raises ``UnseenModuleError`` at a module without a code.

    Args:
        names: Shared with the other side.
        module_codes: Of every module of this trace, ``SET_ASIDE`` for those not to compare.
    """

    def __init__(self, names: SharedNames, module_codes: Mapping[str, int]) -> None:
        self.shapes = Shapes()
        self._module_codes = module_codes
        self._names = {
            "module": ("module_name", Translation(self._module)),
            "phase": ("phase", Translation(names.phases.code)),
            "walk": ("phase", Translation(lambda phase: _WALKS.get(phase, FORWARD))),
            "role": ("role", Translation(names.roles.code)),
            "context": ("context", Translation(names.contexts.code)),
            "kind": ("kind", Translation(names.kinds.code)),
            "dtype": ("dtype", Translation(names.dtypes.code)),
        }
        self._ignored = Translation(lambda note: int(IGNORED_NOTE in note.split("; ")))

    def _module(self, name: str) -> int:
        try:
            return self._module_codes[name]
        except KeyError:
            raise UnseenModuleError(name) from None

    def block(self, table: pa.Table, offset: int) -> Block:
        """Return a table's rows.

        Args:
            table: With ``READ_COLUMNS``, or without those that only non-finite tensors need.
            offset: Subtracted from the batch numbers.
        """
        columns = {name: numbers(table, source) for name, source in _INTEGERS.items()}
        columns["batch"] = columns["batch"] - offset if offset else columns["batch"]
        columns |= {name: translate(table[source]) for name, (source, translate) in self._names.items()}
        columns["shape"] = self.shapes(table["shape"])
        count, present = table.num_rows, table.column_names
        for name in (*FIGURES, *COUNTS):
            columns[name] = _known(table, name) if name in present else constant(_UNKNOWN_FIGURE, count)
        if "note" in present:
            columns["ignored"] = self._ignored(table["note"]) == 1
        else:
            columns |= {name: constant(_NONE, count) for name in COUNT_COLUMNS}
            columns |= {"ignored": constant(np.False_, count), "finite_abs_max": columns["abs_max"]}
        return Block(columns)


def read_blocks(
    rank: RankTrace, side: Side, *, offset: int = 0, batch: int | None = None, full_statistics: bool = True
) -> Iterator[Block]:
    """Yield the rows of one rank in order, some 100,000 a block where there are so many.

    Args:
        rank: What to read.
        side: How.
        offset: Subtracted from the batch numbers.
        batch: The only batch wanted, in the trace's own numbers. Row groups that have neither it nor the one after it
            (which shows whether it is whole) are not read.
        full_statistics: Whether to read the figures that are only there where they were asked for.

    Raises:
        DamagedTraceError: A row group cannot be read.
    """
    tables = _tables(rank, batch, (*_ALWAYS, *_FULL) if full_statistics else _ALWAYS)
    blocks = _joined(_blocks(tables, side, offset))
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


def _blocks(tables: Iterator[pa.Table], side: Side, offset: int) -> Iterator[Block]:
    segments = _Segments()
    for table in tables:
        if not table.num_rows:
            continue
        block = side.block(table, offset)
        block.columns["segment"] = segments(block["frame"])
        aside = block["module"] == SET_ASIDE
        if aside.any():
            block = block.take(~aside)
        if len(block):
            yield block


def _joined(blocks: Iterator[Block]) -> Iterator[Block]:
    """Join small blocks: three threads that pass the interpreter on after every short step lose half of their time."""
    held: list[Block] = []
    rows = 0
    for block in blocks:
        held.append(block)
        rows += len(block)
        if rows >= _ROWS_A_BLOCK:
            yield Block.concatenate(held)
            held, rows = [], 0
    if held:
        yield Block.concatenate(held)


def _tables(rank: RankTrace, batch: int | None, wanted: tuple[str, ...]) -> Iterator[pa.Table]:
    for group in rank.row_groups:
        if batch is None or group.first_batch - 1 <= batch <= group.last_batch:
            columns = wanted if group.finite else (*wanted, *_NONFINITE)
            if group.rows > _ROWS_A_BLOCK and group.first_rank == group.last_rank:
                yield from _whole_frames(stream_row_group(group, columns))
            else:
                yield rank.read(group, columns)
    if rank.ring.num_rows:
        yield rank.ring


def _whole_frames(pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Cut the pieces again, between frames."""
    rest: pa.Table | None = None
    for piece in pieces:
        table = piece if rest is None else pa.concat_tables([rest, piece])
        frames = numbers(table, "frame_number")
        cut = int(np.searchsorted(frames, frames[-1]))
        if cut:
            yield table.slice(0, cut)
        rest = table.slice(cut)
    if rest is not None:
        yield rest


class _Segments:
    """Numbers the stretches of frames that follow each other without a gap."""

    def __init__(self) -> None:
        self._last_frame: int | None = None
        self._segment = 0

    def __call__(self, frames: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if self._last_frame is not None and int(frames[0]) - self._last_frame > 1:
            self._segment += 1
        self._last_frame = int(frames[-1])
        jumps = frames[1:] - frames[:-1] > 1
        if not jumps.any():
            return constant(np.int64(self._segment), len(frames))
        segments: npt.NDArray[np.int64] = np.cumsum(np.append(False, jumps)) + self._segment
        self._segment = int(segments[-1])
        return segments


def _known(table: pa.Table, name: str) -> npt.NDArray[Any]:
    if table[name].null_count == table.num_rows:
        return constant(_UNKNOWN_FIGURE, table.num_rows)
    return numbers(table, name, UNKNOWN)
