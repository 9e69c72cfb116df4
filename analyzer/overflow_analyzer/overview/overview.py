"""``overview_of(trace) -> Overview``: every recorded tensor over the batches of a run, in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from overflow_analyzer.first_nonfinite.growth import bits_per_batch
from overflow_analyzer.format.arrays import Integers, coded, numbers
from overflow_analyzer.format.columns import COUNT_COLUMNS
from overflow_analyzer.format.float_formats import float_format
from overflow_analyzer.format.frames import IGNORED_NOTE
from overflow_analyzer.overview.grid import Doubles, Grid, Singles, halved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from overflow_analyzer.trace.opening import Trace
    from overflow_analyzer.trace.rank_trace import RankTrace

    Progress = Callable[[Iterable[pa.Table], int], Iterable[pa.Table]]


Flags = npt.NDArray[np.bool_]

_NAMES: Final = ("module_name", "role", "context", "dtype")
_BITS: Final = (26, 5, 24, 8)  # of a tensor's key: so many different names are told apart
_COLUMNS: Final = (
    *_NAMES, "module_class", "note", "batch_number", "optimizer_step", "numel", "finite_abs_max",
    *COUNT_COLUMNS, "zero_count", "subnormal_count",
)  # fmt: skip
PLANES: Final = ("log2", "zero", "subnormal", "nan", "inf")
"""The figures of a ``Level``."""
_HELD_ROLES: Final = frozenset({"weight", "buffer", "input", "output", "value"})
"""Roles whose headroom is a module's, as in ``headroom``."""
_MASKING_ROLES: Final = frozenset({"input", "output"})
_MOST_BINS: Final = 2048
_MOST_CELLS: Final = 1 << 23
_RECENT_BATCHES: Final = 128
_FIT_BATCHES: Final = 64
_MOST_RANK_CELLS: Final = 1 << 18


class Tensor(NamedTuple):
    """What a row of an overview is about."""

    module_name: str
    role: str
    context: str
    dtype: str | None
    module_class: str


@dataclass(frozen=True)
class Level:
    """All tensors over one range of batches, at one resolution.

    Planes have the shape [tensors, bins] and hold the largest figure of each bin, over calls and ranks; nan is not
    recorded.
    """

    first: Integers
    """The first batch of each bin."""
    last: Integers
    count: Integers
    """Recorded batches in each bin."""
    optimizer_step: Integers
    """The last known in each bin; -1 where none is."""
    log2: Singles
    """log2 of the largest finite magnitude; -inf where all is 0."""
    zero: Singles | None
    """Share of elements that are 0; None where statistics="full" was not recorded."""
    subnormal: Singles | None
    nan: Singles | None
    """nan elements of one tensor; None where there is none. Intended ones do not count."""
    inf: Singles | None

    def halved(self) -> Level:
        """Return the same with each two neighbouring bins as one."""
        pairs = np.arange(0, len(self.first), 2)
        zero, subnormal, nan, inf = (
            None if plane is None else halved(plane) for plane in (self.zero, self.subnormal, self.nan, self.inf)
        )
        return Level(
            self.first[::2],
            np.maximum.reduceat(self.last, pairs),
            np.add.reduceat(self.count, pairs),
            np.maximum.reduceat(self.optimizer_step, pairs),
            halved(self.log2),
            zero,
            subnormal,
            nan,
            inf,
        )


@dataclass(frozen=True)
class RankStrip:
    """The least headroom of each rank over batches."""

    ranks: tuple[int, ...]
    width: int
    """Recorded batches in a bin."""
    first: Integers
    last: Integers
    headroom: Singles
    """Bits, shape [ranks, bins]; nan is not recorded."""
    nonfinite: Singles
    """The largest count of non-finite elements in one tensor, shape [ranks, bins]."""


class Fit(NamedTuple):
    """How a module's largest share of its format's limit grew over its last recorded batches, as ``top`` says it."""

    first_batch: int
    last_batch: int
    growth_bits: float
    """Doublings a batch."""
    last_log2: float
    """log2 of the last share."""


@dataclass(frozen=True)
class Overview:
    """Every recorded tensor over the batches of a run."""

    tensors: tuple[Tensor, ...]
    """In order of first appearance, which is that of execution."""
    whole: Level
    recent: Level | None
    """The last batches, one a bin; None where ``whole`` has every batch alone."""
    strip: RankStrip
    fits: dict[str, Fit]
    """By module name, where there is a growth."""
    masks: int
    """Tensors left out somewhere because they hold exactly their format's limit, as masks of finfo.min do."""


def overview_of(trace: Trace, *, progress: Progress = lambda tables, _: tables) -> Overview:
    """Gather every tensor's largest figures over the batches of a run.

    Args:
        trace: An open trace.
        progress: Called with a rank's tables and about how many they are; yields them and may show how far it is.

    Raises:
        DamagedTraceError: A row group cannot be read.
    """
    gathering = _Gathering(recorded_batches(trace), len(trace.ranks))
    for number, rank in enumerate(trace.ranks):
        for table in progress(rank.tables(_COLUMNS), rank.table_count):
            gathering.add(table, number)
    return gathering.finish(tuple(rank.rank for rank in trace.ranks))


def recorded_batches(trace: Trace) -> Integers:
    """Return the numbers of all recorded batches, ascending."""
    found: Integers = np.empty(0, np.int64)
    for rank in trace.ranks:
        found = np.union1d(found, np.concatenate([[], *_batches_of(rank)]).astype(np.int64))
    return found


def _batches_of(rank: RankTrace) -> Iterable[Integers]:
    for group in rank.row_groups:
        if group.last_batch - group.first_batch <= 1 and group.first_rank == group.last_rank:
            yield np.array([group.first_batch, group.last_batch])
        else:
            yield from (np.unique(numbers(table, "batch_number")) for table in rank.pieces(group, ["batch_number"]))
    yield np.unique(numbers(rank.ring, "batch_number"))


class _Gathering:
    """The overview as tables come by."""

    def __init__(self, batches: Integers, ranks: int) -> None:
        self._batches = batches
        self._grids = [
            Grid(count, most_bins=_MOST_BINS, most_cells=_MOST_CELLS)
            for count in (len(batches), min(len(batches), _RECENT_BATCHES))
        ]
        self._strip = Grid(len(batches), most_bins=_MOST_BINS, most_cells=_MOST_RANK_CELLS)
        self._strip.grow(ranks)
        self._steps = np.full(len(batches), -1, np.int64)
        self._vocabularies: tuple[dict[str | None, int], ...] = ({}, {}, {}, {})
        self._keys: Integers = np.empty(0, np.int64)  # ascending, with the tensor of each
        self._tensor_of: Integers = np.empty(0, np.int64)
        self._tensors: list[Tensor] = []
        self._masks: set[int] = set()
        self._limit: Doubles = np.empty(0)
        self._log2_limit: Doubles = np.empty(0)
        self._is_held: Flags = np.empty(0, bool)
        self._may_mask: Flags = np.empty(0, bool)

    def add(self, table: pa.Table, rank: int) -> None:
        tensors = self._number(table)
        positions = np.minimum(np.searchsorted(self._batches, numbers(table, "batch_number")), len(self._batches) - 1)
        np.maximum.at(self._steps, positions, numbers(table, "optimizer_step"))
        figure = numbers(table, "finite_abs_max").astype(np.float64)
        masked = self._may_mask[tensors] & (figure == self._limit[tensors])
        self._masks.update(np.unique(tensors[masked]).tolist())
        figure[masked | ~((figure >= 0) & (figure < math.inf))] = math.nan
        with np.errstate(divide="ignore"):
            log2 = np.log2(figure)
        planes = {"log2": log2, **_shares(table), **_counts(table)}
        for grid in self._grids:
            grid.grow(len(self._tensors))
            shifted = positions - (len(self._batches) - grid.batches)
            for name, values in planes.items() if shifted.max() >= 0 else ():
                grid.add(name, tensors, shifted, values)
        ranks = np.full(len(tensors), rank)
        used = np.where(self._is_held[tensors], log2 - self._log2_limit[tensors], math.nan)
        self._strip.add("used", ranks, positions, used)
        for name in ("nan", "inf"):
            if name in planes:
                self._strip.add("nonfinite", ranks, positions, planes[name])

    def _number(self, table: pa.Table) -> Integers:
        """Return each row's tensor, numbering tensors that were not seen before in order of appearance."""
        keys: Integers = np.zeros(table.num_rows, np.int64)
        for name, bits, vocabulary in zip(_NAMES, _BITS, self._vocabularies, strict=True):
            codes, names = coded(table, name)
            # The last position stands for null, whose code is -1.
            known = [vocabulary.setdefault(one, len(vocabulary)) for one in (*names, None)]
            keys = (keys << bits) | (np.array(known, np.int64)[codes] & ((1 << bits) - 1))
        at = np.minimum(np.searchsorted(self._keys, keys), max(0, len(self._keys) - 1))
        new = np.flatnonzero(self._keys[at] != keys) if len(self._keys) else np.arange(len(keys))
        if len(new):
            self._learn(table, keys, new)
            at = np.searchsorted(self._keys, keys)
        return self._tensor_of[at]

    def _learn(self, table: pa.Table, keys: Integers, new: Integers) -> None:
        distinct, first = np.unique(keys[new], return_index=True)
        order = np.argsort(first)
        columns = [coded(table, name) for name in Tensor._fields]
        for at in new[first[order]].tolist():
            self._tensors.append(Tensor._make(names[codes[at]] if codes[at] >= 0 else None for codes, names in columns))
        numbered = np.empty(len(distinct), np.int64)
        numbered[order] = np.arange(len(self._tensors) - len(distinct), len(self._tensors))
        all_keys = np.concatenate([self._keys, distinct])
        sorting = np.argsort(all_keys)
        self._keys, self._tensor_of = all_keys[sorting], np.concatenate([self._tensor_of, numbered])[sorting]
        formats = [float_format(one.dtype) for one in self._tensors]
        self._limit = np.array([math.nan if one is None else one.max for one in formats])
        self._log2_limit = np.log2(self._limit)
        self._is_held = np.array([one.role in _HELD_ROLES for one in self._tensors])
        self._may_mask = np.array([one.role in _MASKING_ROLES for one in self._tensors])

    def finish(self, ranks: tuple[int, ...]) -> Overview:
        whole, recent = (self._level(grid) for grid in self._grids)
        strip = self._strip
        first, last, _ = self._bounds(strip)
        return Overview(
            tensors=tuple(self._tensors),
            whole=whole,
            recent=None if self._grids[0].width == 1 else recent,
            strip=RankStrip(ranks, strip.width, first, last, -_plane(strip, "used"), _plane(strip, "nonfinite")),
            fits=self._fits(recent),
            masks=len(self._masks),
        )

    def _level(self, grid: Grid) -> Level:
        first, last, count = self._bounds(grid)
        steps = self._steps[-grid.batches :]
        return Level(
            first,
            last,
            count,
            np.maximum.reduceat(steps, np.arange(0, len(steps), grid.width)),
            log2=_plane(grid, "log2"),
            zero=grid.plane("zero"),
            subnormal=grid.plane("subnormal"),
            nan=grid.plane("nan"),
            inf=grid.plane("inf"),
        )

    def _bounds(self, grid: Grid) -> tuple[Integers, Integers, Integers]:
        """Return the first and last batch of each bin, and how many it has."""
        batches = self._batches[-grid.batches :]
        starts = np.arange(0, grid.batches, grid.width)
        stops = np.minimum(starts + grid.width, grid.batches)
        return batches[starts], batches[stops - 1], stops - starts

    def _fits(self, recent: Level) -> dict[str, Fit]:
        # As for top, a tensor with an inf in it does not say how the finite ones grow.
        log2 = recent.log2 if recent.inf is None else np.where(recent.inf > 0, np.nan, recent.log2)
        rows: dict[str, list[int]] = {}
        for at in np.flatnonzero(self._is_held & ~np.isnan(self._limit)).tolist():
            rows.setdefault(self._tensors[at].module_name, []).append(at)
        fits = {}
        for module, some in rows.items():
            used = np.fmax.reduce(log2[some] - self._log2_limit[some][:, None], axis=0)[-_FIT_BATCHES:]
            known = np.flatnonzero(np.isfinite(used))
            batches = recent.first[-_FIT_BATCHES:][known].tolist()
            growth = bits_per_batch([(batch, 2.0**value) for batch, value in zip(batches, used[known], strict=True)])
            if growth is not None:
                fits[module] = Fit(batches[0], batches[-1], growth, float(used[known[-1]]))
        return fits


def _shares(table: pa.Table) -> dict[str, Doubles]:
    """Return the shares of zeros and of subnormals, those that were recorded."""
    columns = {"zero": "zero_count", "subnormal": "subnormal_count"}
    recorded = {name: column for name, column in columns.items() if table[column].null_count < table.num_rows}
    return {name: numbers(table, column) / np.maximum(numbers(table, "numel"), 1) for name, column in recorded.items()}


def _counts(table: pa.Table) -> dict[str, Doubles]:
    """Return the counts of nan and of inf that are not intended, nan where there is none; those that occur."""
    nan, positive, negative = (numbers(table, name, 0).astype(np.float64) for name in COUNT_COLUMNS)
    counts = {name: one for name, one in (("nan", nan), ("inf", positive + negative)) if one.any()}
    if not counts:
        return {}
    codes, notes = coded(table, "note")
    intended = np.array([*(IGNORED_NOTE in (one or "").split("; ") for one in notes), False])[codes]
    return {name: np.where((one > 0) & ~intended, one, math.nan) for name, one in counts.items()}


def _plane(grid: Grid, name: str) -> Singles:
    found = grid.plane(name)
    return np.full((grid.rows, grid.bins), np.nan, np.float32) if found is None else found
