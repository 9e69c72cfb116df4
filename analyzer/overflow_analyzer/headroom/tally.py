"""Counting headroom table by table, with numpy; a Python object is made only where a module's record is broken."""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.format.arrays import Integers, coded, numbers
from overflow_analyzer.format.columns import COUNT_COLUMNS
from overflow_analyzer.format.float_formats import FloatFormat, float_format
from overflow_analyzer.format.frames import IGNORED_NOTE

if TYPE_CHECKING:
    import pyarrow as pa


COLUMNS: Final = (
    "module_name", "module_class", "role", "context", "dtype", "note", "batch_number", "numel", "finite_abs_max",
    *COUNT_COLUMNS, "zero_count", "subnormal_count",
)  # fmt: skip
_GROWING_ROLES: Final = frozenset({"weight", "buffer", "input", "output", "value"})
_VANISHING_ROLES: Final = frozenset({"input", "output", "value", "grad_input", "grad_output", "weight_grad"})
_PASSING_ROLES: Final = frozenset({"input", "output"})
_RECENT_BATCHES: Final = 64
_SUBNORMALS_FIRST: Final = 1e9

Doubles = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Tensor:
    role: str
    context: str
    dtype: str
    batch_number: int
    abs_max: float
    """The largest finite magnitude, or inf where the limit is asked for and an inf is not intended."""


@dataclass(frozen=True)
class Nearest(_Tensor):
    """A tensor near its format's limit."""

    limits: FloatFormat
    """What it is held against."""


@dataclass(frozen=True)
class Vanishing(_Tensor):
    """A tensor near the lower end of its format."""

    zero_share: float | None
    """Of its elements; None where statistics="full" was not recorded."""
    subnormal_share: float | None
    floor_bits: float
    """How often its largest element can be halved before it is subnormal; -inf where all is 0."""

    @property
    def order(self) -> tuple[bool, float, float]:
        """Sorts what is nearest to being 0 everywhere first."""
        return (self.abs_max != 0, -(self.subnormal_share or 0.0), self.floor_bits)


class Tally:
    """The extremes of every module so far.

    Args:
        limits: What all floating-point figures are held against; None for each tensor's own format.
    """

    def __init__(self, limits: FloatFormat | None) -> None:
        self._limits = limits
        self._numbers: dict[str, int] = {}
        self.names: list[tuple[str, str]] = []
        """(module name, class) by module number, in order of first appearance."""
        self.nearest: dict[int, Nearest] = {}
        self.vanishing: dict[int, Vanishing] = {}
        self.nonfinite = np.empty(0)
        """By module number: elements that are inf or nan and not intended."""
        self.masks: set[tuple[str, str]] = set()
        """Module and context of the tensors left out as masks."""
        self.largest_shares: dict[int, Doubles] = {}
        """By batch that growth is measured over, of all ranks: the largest share of the limit, by module number."""
        self._nearest_share = np.empty(0)
        self._vanishing_depth = np.empty(0)
        self._batches: deque[tuple[int, Doubles]] = deque(maxlen=_RECENT_BATCHES)

    def recent(self, number: int) -> list[tuple[int, float]]:
        """Return (batch, largest share of the limit) of a module in the last batches, without those of figure 0."""
        shares = ((batch, some[number]) for batch, some in sorted(self.largest_shares.items()) if number < len(some))
        return [(batch, float(share)) for batch, share in shares if share > 0]

    def add(self, table: pa.Table) -> None:
        """Take in a table with ``COLUMNS``, rows of one rank in order."""
        rows = _Rows(table, self._limits)
        modules = self._modules(table)
        np.add.at(self.nonfinite, modules, np.where(rows.intended, 0.0, rows.nonfinite))
        masks = rows.of_roles(_PASSING_ROLES) & (rows.figure == rows.own_limit)
        self.masks.update(
            (self.names[modules[at]][0], rows.text("context", at)) for at in np.flatnonzero(masks).tolist()
        )
        growing = rows.of_roles(_GROWING_ROLES) & ~masks
        self._take_nearest(rows, modules, growing)
        self._take_batches(rows, modules, growing & np.isfinite(rows.share))
        self._take_vanishing(rows, modules)

    def end_rank(self) -> None:
        """Join the last batches of a rank with those of the others: of each batch the largest share."""
        for batch, shares in self._batches:
            known = self.largest_shares.get(batch, np.zeros(0))
            self.largest_shares[batch] = _larger(known, shares)
        self.largest_shares = dict(sorted(self.largest_shares.items())[-_RECENT_BATCHES:])
        self._batches.clear()

    def _modules(self, table: pa.Table) -> Integers:
        """Return each row's module number, numbering modules that were not seen before."""
        codes, names = coded(table, "module_name")
        first = dict(zip(*(one.tolist() for one in np.unique(codes, return_index=True)), strict=True))
        class_codes, classes = coded(table, "module_class")
        for code in sorted(first, key=first.__getitem__):
            if names[code] not in self._numbers:
                self._numbers[names[code]] = len(self.names)
                self.names.append((names[code], classes[class_codes[first[code]]]))
        grown = len(self.names) - len(self.nonfinite)
        self.nonfinite = np.append(self.nonfinite, np.zeros(grown))
        self._nearest_share = np.append(self._nearest_share, np.full(grown, -1.0))
        self._vanishing_depth = np.append(self._vanishing_depth, np.full(grown, -math.inf))
        return np.array([self._numbers.get(name, -1) for name in names], np.int64)[codes]

    def _take_nearest(self, rows: _Rows, modules: Integers, wanted: Flags) -> None:
        share = np.where(wanted & ~np.isnan(rows.share), rows.share, -1.0)
        for module, at in _break_records(self._nearest_share, modules, share):
            self.nearest[module] = rows.nearest(at)

    def _take_batches(self, rows: _Rows, modules: Integers, wanted: Flags) -> None:
        bounds = [0, *(np.flatnonzero(np.diff(rows.batch)) + 1).tolist(), len(rows.batch)]
        # Of many batches in one table only the last can still be among the recent ones.
        for start, stop in list(itertools.pairwise(bounds))[-_RECENT_BATCHES:]:
            shares = np.zeros(len(self.names))
            chosen = np.flatnonzero(wanted[start:stop]) + start
            np.maximum.at(shares, modules[chosen], rows.finite_share[chosen])
            batch = int(rows.batch[start])
            if self._batches and self._batches[-1][0] == batch:
                shares = _larger(self._batches.pop()[1], shares)
            self._batches.append((batch, shares))

    def _take_vanishing(self, rows: _Rows, modules: Integers) -> None:
        wanted = rows.of_roles(_VANISHING_ROLES) & ~np.isnan(rows.floor)
        # The share of subnormals counts first: it outweighs the few thousand bits that a floor can lie away.
        depth = np.where(wanted, _SUBNORMALS_FIRST * rows.subnormal_share - rows.floor, -math.inf)
        for module, at in _break_records(self._vanishing_depth, modules, depth):
            self.vanishing[module] = rows.vanishing(at)


class _Rows:
    """A table's figures as arrays, one element a row."""

    def __init__(self, table: pa.Table, limits: FloatFormat | None) -> None:
        self._names = {name: coded(table, name) for name in ("role", "context", "dtype")}
        codes, names = self._names["dtype"]
        own = [float_format(name) for name in names]
        self._held = [None if one is None else (limits or one) for one in own]
        self._held_against_own = limits is None
        self.batch = numbers(table, "batch_number")
        figure: Doubles = numbers(table, "finite_abs_max").astype(np.float64)
        self.figure = np.where((figure >= 0) & (figure < math.inf), figure, math.nan)
        counts = [np.nan_to_num(numbers(table, name).astype(np.float64)) for name in COUNT_COLUMNS]
        # As float64: a forged count may be too large for the sum of three to be an int64.
        self.nonfinite: Doubles = counts[0] + counts[1] + counts[2]
        note_codes, notes = coded(table, "note")
        said = [note is not None and IGNORED_NOTE in note.split("; ") for note in notes]
        self.intended = np.array([*said, False])[note_codes]
        infinite = (counts[1] + counts[2] > 0) & ~self.intended
        self.own_limit = _by_code([math.nan if one is None else one.max for one in own], codes)
        limit = _by_code([math.nan if one is None else one.max for one in self._held], codes)
        lowest = _by_code([math.nan if one is None else one.smallest_normal for one in self._held], codes)
        self.finite_share = self.figure / limit
        self.share = np.where(infinite & ~np.isnan(limit), math.inf, self.finite_share)
        self.reached = np.where(infinite, math.inf, self.figure)
        with np.errstate(divide="ignore"):
            self.floor = np.log2(self.figure) - np.log2(lowest)
        numel = np.maximum(numbers(table, "numel"), 1)
        self.zero_share = numbers(table, "zero_count").astype(np.float64) / numel
        self._subnormal_share = numbers(table, "subnormal_count").astype(np.float64) / numel
        self.subnormal_share = np.nan_to_num(self._subnormal_share) if self._held_against_own else np.zeros(len(numel))

    def of_roles(self, roles: frozenset[str]) -> Flags:
        """Whether each row has one of these roles."""
        codes, names = self._names["role"]
        return np.array([name in roles for name in names], dtype=bool)[codes]

    def text(self, name: str, at: int) -> str:
        """Return a name of one row."""
        codes, names = self._names[name]
        return str(names[codes[at]])

    def _tensor(self, at: int, abs_max: Doubles) -> tuple[str, str, str, int, float]:
        role, context, dtype = (self.text(name, at) for name in ("role", "context", "dtype"))
        return role, context, dtype, int(self.batch[at]), float(abs_max[at])

    def nearest(self, at: int) -> Nearest:
        """Return one row as what it is near the limit; only of rows with a floating-point dtype."""
        limits = self._held[int(self._names["dtype"][0][at])]
        if limits is None:
            raise ValueError("a row without a floating-point format has no limit")
        return Nearest(*self._tensor(at, self.reached), limits)

    def vanishing(self, at: int) -> Vanishing:
        """Return one row as what it is near the lower end."""
        zero, subnormal = float(self.zero_share[at]), float(self._subnormal_share[at])
        own = self._held_against_own
        return Vanishing(
            *self._tensor(at, self.figure),
            zero_share=None if math.isnan(zero) else zero,
            subnormal_share=subnormal if own and not math.isnan(subnormal) else None,
            floor_bits=float(self.floor[at]),
        )


def _by_code(values: list[float], codes: Integers) -> Doubles:
    """Return a value a row; the last position stands for null, whose code is -1."""
    found: Doubles = np.array([*values, math.nan])[codes]
    return found


def _break_records(records: Doubles, modules: Integers, values: Doubles) -> list[tuple[int, int]]:
    """Raise each module's record to its largest value; return the modules whose record rose, with its row."""
    before = records.copy()
    np.maximum.at(records, modules, values)
    broken = np.flatnonzero((values == records[modules]) & (values > before[modules]))
    found, first = np.unique(modules[broken], return_index=True)
    return list(zip(found.tolist(), broken[first].tolist(), strict=True))


def _larger(one: Doubles, other: Doubles) -> Doubles:
    size = max(len(one), len(other))
    padded = [np.concatenate([some, np.zeros(size - len(some))]) for some in (one, other)]
    larger: Doubles = np.maximum(*padded)
    return larger
