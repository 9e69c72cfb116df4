"""The differences of paired rows, figure by figure, all rows at once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.stream.block import COUNTS, FIGURES, UNKNOWN, Block, differ, is_constant, is_repeated
from overflow_analyzer.format.columns import COUNT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]

COMPARED_FIGURES: Final = (*FIGURES, *COUNTS)


@dataclass(frozen=True)
class Differences:
    """The pairs that are not equal bit for bit, or differ in shape or kind; columns of equal length."""

    rows: npt.NDArray[np.int64]
    """Positions among the pairs, ascending."""
    relative: Numbers
    epsilons: Numbers
    tolerated_epsilons: Numbers
    figure: npt.NDArray[np.int8]
    """Position in ``COMPARED_FIGURES`` of what differs most."""
    beyond: Flags
    """More than is tolerated, or another shape or kind."""
    reshaped: Flags
    """Another shape or kind."""
    nonfinite: Flags
    """An inf or nan in only one of the two."""

    def take(self, which: Flags) -> Differences:
        """Return some of the rows."""
        if which.all():
            return self
        at = np.flatnonzero(which)
        return Differences(*(getattr(self, one.name)[at] for one in dataclasses.fields(self)))


@dataclass(frozen=True)
class Pairs:
    """Rows of both runs, row i of one the counterpart of row i of the other, in order of execution."""

    a: Block
    b: Block
    differences: Differences

    def take(self, which: Flags) -> Pairs:
        """Return some of the pairs."""
        kept = self.differences.take(which[self.differences.rows])
        renumbered = dataclasses.replace(kept, rows=(np.cumsum(which) - 1)[kept.rows])
        return Pairs(self.a.take(which), self.b.take(which), renumbered)


def is_finite(block: Block) -> Flags:
    """Return which rows are known to have no inf or nan; a row that was not measured is neither finite nor not."""
    finite: Flags = (block["abs_max"] != UNKNOWN) & ~is_nonfinite(block)
    return finite


def is_nonfinite(block: Block) -> Flags:
    """Return which rows have an inf or nan."""
    nonfinite: Flags = ~np.isfinite(block["abs_max"])
    for name in COUNT_COLUMNS:
        nonfinite |= block[name] > 0
    return nonfinite


class FigureDifferences:
    """Collects, figure by figure, what differs most in each row: of those beyond tolerance, where there are any.

    Args:
        limit: Relative difference that is tolerated for each row.
        least: Absolute difference that is tolerated.
    """

    def __init__(self, limit: Numbers, least: Numbers) -> None:
        self._limit = limit
        self._least = least
        self.relative = np.zeros(len(limit))
        self.figure = np.zeros(len(limit), np.int8)
        self.beyond = np.zeros(len(limit), bool)
        self.unjudged = np.zeros(len(limit), bool)
        """Where a figure is another one, but rounding may have made it so."""

    def add(self, a: Block, b: Block, unjudged: Mapping[str, Flags]) -> None:
        """Add every figure of paired rows.

        Args:
            a: Of A.
            b: Of B.
            unjudged: By figure, where rounding may have made any difference.
        """
        none = np.zeros(len(a), bool)
        for at, name in enumerate(FIGURES):
            unknown = is_constant(a[name]) and is_constant(b[name])
            if not unknown and not is_repeated(name, a, b):
                self._add_figure(at, a[name], b[name], _scale(name, a, b), unjudged.get(name, none))
        for at, name in enumerate(COUNTS, len(FIGURES)):
            if differ(a, b, name).any():
                self._add_count(at, a[name], b[name], unjudged.get(name, none))

    def _add_figure(self, at: int, a: Numbers, b: Numbers, scale: Numbers, skip: Flags) -> None:
        """Add a figure; unknown on a side (null) it agrees with everything."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            delta = np.abs(a - b)
            allowed = np.maximum(self._limit * scale, self._least)
            relative = np.divide(delta, scale, out=np.zeros(len(delta)), where=scale > 0)
        beyond = delta > allowed
        if not _is_plain(a) or not _is_plain(b):
            agree = (a == b) | (np.isnan(a) & np.isnan(b)) | (a == UNKNOWN) | (b == UNKNOWN)
            beyond = ~agree & (beyond | ~np.isfinite(delta))
            relative = np.where(agree, 0.0, np.where(np.isfinite(delta), relative, np.inf))
        self.unjudged |= ((relative > 0) | beyond) & skip
        self._keep_largest(at, np.where(skip, 0.0, relative), beyond & ~skip)

    def _add_count(self, at: int, a: npt.NDArray[Any], b: npt.NDArray[Any], skip: Flags) -> None:
        """Add a count; it must be equal."""
        agree = (a == b) | (a == UNKNOWN) | (b == UNKNOWN)
        self.unjudged |= ~agree & skip
        agree |= skip
        relative = np.abs(a - b) / np.maximum(np.maximum(a, b), 1)
        self._keep_largest(at, np.where(agree, 0.0, relative), ~agree)

    def _keep_largest(self, at: int, relative: Numbers, beyond: Flags) -> None:
        if at == 0:
            self.relative, self.beyond = relative, beyond
            return
        larger = (beyond > self.beyond) | ((beyond == self.beyond) & (relative > self.relative))
        np.copyto(self.relative, relative, where=larger)
        np.copyto(self.figure, np.int8(at), where=larger)
        self.beyond |= beyond


def _scale(figure: str, a: Block, b: Block) -> Numbers:
    """Return what a figure's difference is relative to.

    The least magnitude is an accident of cancellation: what rounding does to it is in proportion to the largest.
    """
    name = "finite_abs_max" if figure == "abs_min" else figure
    return np.fmax(a[name], b[name])


def _is_plain(figures: Numbers) -> bool:
    """Whether all figures are known and finite."""
    return bool(len(figures)) and bool(figures.min() >= 0) and bool(figures.max() < np.inf)
