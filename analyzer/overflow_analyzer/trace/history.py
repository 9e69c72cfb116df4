"""Tensors over the batches of a run, and where a figure jumped: ``history_of(trace, ["blocks.4.n1:weight"])``."""

from __future__ import annotations

import difflib
import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from overflow_analyzer.errors import NotRecordedError
from overflow_analyzer.format.arrays import Integers, coded, number_array, numbers
from overflow_analyzer.format.columns import COUNT_COLUMNS, columns_of
from overflow_analyzer.format.patterns import regular_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from overflow_analyzer.trace.opening import Trace

    Progress = Callable[[Iterable[pa.Table], int], Iterable[pa.Table]]

FIGURES: Final = columns_of("figure")
"""The columns that a history can follow."""
JUMP_BITS: Final = 3.0
"""A change from one recorded batch to the next is a jump from so many doublings or halvings on ..."""
JUMP_RATIO: Final = 4.0
"""... if it is also so many times the median of the changes before it."""


class _Key(NamedTuple):
    """Columns that name a tensor; the same one may change its class or dtype."""

    module_name: str
    module_class: str
    role: str
    context: str
    dtype: str | None


@dataclass(frozen=True)
class Point:
    """One tensor in one batch."""

    batch_number: int
    value: float | None
    """The figure; of several calls the largest, nan above all. None where it was not recorded."""
    calls: int
    """Rows of this tensor in the batch."""
    nonfinite_count: int
    """Elements that are inf or nan, over all calls."""
    change_bits: float | None
    """log2 of the figure over that of the recorded batch before; None where one of them has no finite logarithm."""
    jumped: bool
    """Whether the figure jumped, became inf or nan, or fell to 0, since the recorded batch before."""


@dataclass(frozen=True)
class TensorHistory:
    """One tensor of one rank over the batches in which it was recorded."""

    rank: int
    module_name: str
    module_class: str
    role: str
    context: str
    dtype: str | None
    """As in the last of these batches."""
    points: tuple[Point, ...]
    """In order of batches, at least one."""

    @property
    def jumps(self) -> tuple[Point, ...]:
        """The batches in which the figure jumped."""
        return tuple(point for point in self.points if point.jumped)


@dataclass(frozen=True)
class History:
    """Tensors over batches, in order of rank and first appearance."""

    figure: str
    tensors: tuple[TensorHistory, ...]
    left_out: int
    """Matching tensors beyond the limit."""


_ByBatch = dict[int, tuple["float | None", int, int]]
"""What the rows of one tensor add up to, by batch: the largest figure, rows, and elements that are inf or nan."""


class _Question:
    def __init__(self, patterns: Sequence[str], figure: str, role: str | None, since: int) -> None:
        self._patterns, self._figure, self._role, self._since = patterns, figure, role, since
        self._matches = re.compile("|".join(map(regular_expression, patterns)), re.DOTALL)
        self._modules: set[str] = set()
        self.columns = tuple(dict.fromkeys([*_Key._fields, "batch_number", figure, *COUNT_COLUMNS]))

    def rows_in(self, table: pa.Table) -> Iterator[tuple[_Key, int, float | None, int]]:
        """Yield (key, batch, figure, non-finite elements) of the rows of a table that are asked for."""
        columns = {name: coded(table, name) for name in _Key._fields}
        self._modules.update(columns["module_name"][1])
        batches = numbers(table, "batch_number")
        at = self._positions(columns, np.flatnonzero(batches >= self._since))
        nonfinite = sum(np.nan_to_num(numbers(table, name)[at]) for name in COUNT_COLUMNS)
        keys = (
            [values[code] if code >= 0 else None for code in codes[at].tolist()] for codes, values in columns.values()
        )
        # Null and nan are two things here, so the figure does not go through an array of floats.
        figures = table[self._figure].take(number_array(at)).to_pylist()
        rows = zip(map(_Key._make, zip(*keys, strict=True)), batches[at].tolist(), figures, nonfinite, strict=True)
        for key, batch, value, count in rows:
            yield key, batch, value, int(count)

    def _positions(self, columns: dict[str, tuple[Integers, list[Any]]], at: Integers) -> Integers:
        (modules, module_names), (contexts, context_names) = columns["module_name"], columns["context"]
        if self._role is not None:
            codes, roles = columns["role"]
            at = at[np.isin(codes[at], [code for code, name in enumerate(roles) if name == self._role])]
        # Each pair of module and context is matched once, however many rows it has.
        pairs = modules[at].astype(np.int64) * len(context_names) + contexts[at]
        matching = []
        for pair in np.unique(pairs).tolist():
            module, context = module_names[pair // len(context_names)], context_names[pair % len(context_names)]
            if self._matches.fullmatch(module) or self._matches.fullmatch(f"{module}:{context}"):
                matching.append(pair)
        return at[np.isin(pairs, matching)]

    def unanswered(self) -> str:
        """Say that nothing matches, and what is near."""
        asked = ", ".join(map(repr, self._patterns))
        of_role = "" if self._role is None else f" of role {self._role}"
        from_batch = f" from batch {self._since} on" if self._since else ""
        modules = [pattern.partition(":")[0] for pattern in self._patterns]
        near = [name for one in modules for name in difflib.get_close_matches(one, self._modules, n=3)]
        hint = f"; modules with a like name: {', '.join(map(repr, near))}" if near else ""
        return f"no recorded tensor{of_role} matches {asked}{from_batch}{hint}"


def history_of(
    trace: Trace,
    patterns: Sequence[str],
    *,
    figure: str = "abs_max",
    role: str | None = None,
    since: int = 0,
    rank: int | None = None,
    limit: int = 100,
    progress: Progress = lambda tables, _: tables,
) -> History:
    """Follow tensors over the recorded batches.

    Args:
        trace: An open trace.
        patterns: ``MODULE`` or ``MODULE:CONTEXT`` each; ``*`` stands for any characters and ``?`` for one, all else,
            brackets too, is literal. The root module is the empty name.
        figure: One of ``FIGURES``.
        role: Only tensors of this role.
        since: The first batch to look at, 0-based.
        rank: Only this rank; None for all.
        limit: Tensors at most; how many more match is counted.
        progress: Called with a rank's tables and about how many they are; yields them and may show how far it is.

    Raises:
        ValueError: The figure is not one of ``FIGURES``.
        NotRecordedError: The trace has no such rank, or nothing recorded matches.
        DamagedTraceError: A row group cannot be read.
    """
    if figure not in FIGURES:
        raise ValueError(f"{figure!r} is no figure of a trace; known are {', '.join(FIGURES)}")
    asked = _Question(patterns, figure, role, since)
    found: dict[tuple[int, str, str, str], tuple[_Key, _ByBatch]] = {}
    for one in trace.ranks if rank is None else (trace.rank(rank),):
        for table in progress(one.tables(asked.columns), one.table_count):
            for key, batch, value, nonfinite in asked.rows_in(table):
                _, seen = found.setdefault((one.rank, key.module_name, key.role, key.context), (key, {}))
                known, calls, count = seen.get(batch, (None, 0, 0))
                seen[batch] = _larger(known, value), calls + 1, count + nonfinite
    if not found:
        raise NotRecordedError(f"{trace.path}: {asked.unanswered()}")
    tensors = [_tensor(at[0], *seen) for at, seen in list(found.items())[:limit]]
    return History(figure, tuple(tensors), len(found) - len(tensors))


def _larger(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _tensor(rank: int, key: _Key, batches: _ByBatch) -> TensorHistory:
    points: list[Point] = []
    changes: list[float] = []
    for batch, (value, calls, nonfinite) in sorted(batches.items()):
        before = points[-1].value if points else None
        change, jumped = _change(before, value, changes)
        if change is not None:
            changes.append(abs(change))
        points.append(Point(batch, value, calls, nonfinite, change, jumped))
    return TensorHistory(rank, *key, points=tuple(points))


def _change(before: float | None, now: float | None, earlier: list[float]) -> tuple[float | None, bool]:
    """Return the change in bits, and whether it is a jump; what became inf, nan or 0 jumped without a logarithm."""
    if before is None or now is None or not math.isfinite(before):
        return None, False
    if not math.isfinite(now) or before <= 0 or now <= 0:
        return None, not math.isfinite(now) or (now == 0) != (before == 0)
    change = math.log2(now) - math.log2(before)
    return change, abs(change) >= max(JUMP_BITS, JUMP_RATIO * statistics.median(earlier or [0.0]))
