"""The differences of paired rows, all at once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.block import COUNTS, FIGURES, UNKNOWN, Block
from overflow_analyzer.diff.grouping import group_rows
from overflow_analyzer.diff.tolerance import MOST_TOLERATED
from overflow_analyzer.float_formats import FLOAT_FORMATS, float_format

if TYPE_CHECKING:
    from overflow_analyzer.diff.tolerance import Tolerance
    from overflow_analyzer.diff.vocabulary import Vocabulary

__all__ = ["COMPARED_FIGURES", "Differences", "Judge"]

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]

COMPARED_FIGURES: Final = (*FIGURES, *COUNTS)
_INTEGER_UNIT: Final = FLOAT_FORMATS["float64"].epsilon
_SUMS_IN_ITSELF: Final = FLOAT_FORMATS["float32"].epsilon
_STATE_ROLES: Final = ("weight", "optimizer_state")
_PARAMETER_ROLES: Final = ("weight", "weight_grad")


@dataclass(frozen=True)
class Differences:
    """The pairs that are not equal bit for bit, or differ in shape or kind; columns of equal length."""

    rows: npt.NDArray[np.int64]
    """Positions among the pairs, ascending."""
    relative: Numbers
    units: Numbers
    tolerated_units: Numbers
    figure: npt.NDArray[np.int8]
    """Position in ``COMPARED_FIGURES`` of what differs most."""
    beyond: Flags
    """More than is tolerated, or another shape or kind."""
    reshaped: Flags
    """Another shape or kind."""
    nonfinite: Flags
    """An inf or nan in one of the two alone."""

    def take(self, which: Flags) -> Differences:
        """Return some of the rows."""
        columns = (getattr(self, one.name) for one in dataclasses.fields(self))
        return Differences(*(column[which] for column in columns))

    def among(self, keep: Flags) -> Differences:
        """Return those of the pairs that are kept, numbered as among these alone."""
        numbers = np.cumsum(keep) - 1
        kept = self.take(keep[self.rows])
        return dataclasses.replace(kept, rows=numbers[kept.rows])


class Judge:
    """Compares pairs in order of execution and remembers how coarse what came before was.

    Args:
        tolerance: What is taken for rounding.
        dtypes: The names behind the column ``dtype``; it may still grow.
        roles: The same for ``role``.
        coarseness: Of what came before the first pair.
    """

    def __init__(self, tolerance: Tolerance, dtypes: Vocabulary, roles: Vocabulary, *, coarseness: float = 0.0) -> None:
        self._tolerance = tolerance
        self._dtypes = dtypes
        self._state_roles = [roles.code(role) for role in _STATE_ROLES]
        self._parameter_roles = [roles.code(role) for role in _PARAMETER_ROLES]
        self.coarseness = coarseness
        """The coarsest epsilon among the pairs so far that differed at all."""
        self._first_step = 0
        self._batch: int | None = None
        self._coarseness_before_batch = 0.0

    def compare(self, a: Block, b: Block) -> Differences:
        """Return how the rows of ``a`` differ from those of ``b``, row i from row i."""
        unlike = _unlike(a, b)
        other_dtype = a["dtype"] != b["dtype"]
        reshaped = (a["shape"] != b["shape"]) | (a["kind"] != b["kind"])
        rows = np.flatnonzero(unlike | reshaped | other_dtype)
        some_a, some_b, dtype_differs = a.take(rows), b.take(rows), other_dtype[rows]
        epsilon, subnormal = self._coarser(some_a, some_b)
        inherited = self._inherit(some_a, epsilon, unlike[rows] | dtype_differs)
        limit = self._limits(some_a, some_b, epsilon, inherited)
        scale = self._parameter_scale(a, b, rows, inherited)
        found = _Found(limit, self._least(subnormal, scale, limit))
        for at, figure in enumerate(FIGURES):
            found.add_figure(at, *_figure_and_scale(figure, some_a, some_b))
        # Rounding makes zeros and unmakes them: their number is only judged where nothing has been rounded otherwise.
        rounded = (dtype_differs | (inherited > 0)) & (not self._tolerance.exact)
        for at, count in enumerate(COUNTS, len(FIGURES)):
            found.add_count(at, some_a[count], some_b[count], rounded & (count == "zero_count"))
        beyond = found.beyond | reshaped[rows] | (dtype_differs if self._tolerance.exact else False)
        unit = np.where(epsilon > 0, epsilon, _INTEGER_UNIT)
        nonfinite = _is_nonfinite(some_a) != _is_nonfinite(some_b)
        differences = Differences(
            rows=rows,
            relative=found.relative,
            units=found.relative / unit,
            tolerated_units=limit / unit,
            figure=found.figure,
            beyond=beyond,
            reshaped=reshaped[rows],
            nonfinite=nonfinite & ~some_a["ignored"] & ~some_b["ignored"],
        )
        return differences.take(beyond | (found.relative > 0))

    def _coarser(self, a: Block, b: Block) -> tuple[Numbers, Numbers]:
        """Return epsilon and smallest subnormal of the coarser dtype of each pair; 0 for integers."""
        formats = [float_format(name) for name in self._dtypes.names]
        epsilon = np.array([one.epsilon if one else 0.0 for one in formats] or [0.0])
        subnormal = np.array([one.smallest_subnormal if one else 0.0 for one in formats] or [0.0])
        in_a, in_b = a["dtype"], b["dtype"]
        coarser = np.where(epsilon[in_a] >= epsilon[in_b], in_a, in_b)
        return epsilon[coarser], np.maximum(subnormal[in_a], subnormal[in_b])

    def _limits(self, a: Block, b: Block, epsilon: Numbers, inherited: Numbers) -> Numbers:
        """Return the relative difference that is tolerated for each pair."""
        tolerance = self._tolerance
        if tolerance.exact or tolerance.rtol is not None:
            return np.full(len(a), tolerance.rtol or 0.0)
        frames, steps = np.maximum(a["in_batch"], b["in_batch"]), np.maximum(a["step"], b["step"])
        # What agrees bit for bit hands no error on: depth counts from where rounding first made a difference.
        updates = np.maximum(steps - self._first_step, 0)
        depth = np.where(np.isin(a["role"], self._state_roles), updates, frames + updates)
        coarseness = np.where(epsilon > 0, np.maximum(epsilon, inherited), 0.0)
        # 16-bit products are summed in float32; what is summed in its own precision loses more to the order of sums.
        slack = np.where(coarseness <= _SUMS_IN_ITSELF, 2 * tolerance.slack, tolerance.slack)
        limits: Numbers = slack * coarseness * np.sqrt(1.0 + np.where(inherited > 0, depth, 0))
        np.minimum(limits, MOST_TOLERATED, out=limits)
        return limits

    def _least(self, subnormal: Numbers, scale: Numbers, limit: Numbers) -> Numbers:
        """Return the absolute difference that is tolerated for each pair."""
        tolerance = self._tolerance
        if tolerance.exact or tolerance.rtol is not None:
            return np.full(len(limit), tolerance.atol)
        return np.maximum(np.maximum(subnormal, tolerance.atol), limit * scale)

    def _parameter_scale(self, a: Block, b: Block, rows: npt.NDArray[np.int64], inherited: Numbers) -> Numbers:
        """Return for each of ``rows`` the largest magnitude among its module's parameters, or gradients; 0 for others.

        A bias whose true gradient is zero is nothing but the rounding of its updates: once something has been rounded
        otherwise, the parameters of a module are judged on the scale of the largest of them.
        """
        scale = np.zeros(len(rows))
        wanted = np.isin(a["role"][rows], self._parameter_roles) & (inherited > 0)
        if not wanted.any():
            return scale
        parameters = np.flatnonzero(np.isin(a["role"], self._parameter_roles))
        groups = group_rows([a[name][parameters] for name in ("batch", "module", "role")])
        largest = groups.spread(np.fmax, np.fmax(a["finite_abs_max"][parameters], b["finite_abs_max"][parameters]))
        scale[wanted] = largest[np.searchsorted(parameters, rows[wanted])]
        return scale

    def _inherit(self, a: Block, epsilon: Numbers, unlike: Flags) -> Numbers:
        """Return the coarsest epsilon of the differing pairs before each pair.

        For a weight, which no forward changes, of those before its batch.
        """
        if not len(a):
            return epsilon
        running = np.maximum.accumulate(np.append(self.coarseness, np.where(unlike, epsilon, 0.0)))
        batches = a["batch"]
        starts = np.flatnonzero(np.diff(batches, prepend=batches[0] - 1))
        before = running[starts]
        if self._batch == batches[0]:
            before[0] = self._coarseness_before_batch
        before_batch = np.repeat(before, np.diff(starts, append=len(batches)))
        self._batch, self._coarseness_before_batch = int(batches[-1]), float(before[-1])
        if self.coarseness == 0.0 and running[-1] > 0:
            self._first_step = int(a["step"][int(np.argmax(running > 0)) - 1])
        self.coarseness = float(running[-1])
        return np.where(np.isin(a["role"], self._state_roles), before_batch, running[:-1])


def _unlike(a: Block, b: Block) -> Flags:
    """Return which pairs have a figure that is not the same; nan is here unlike nan."""
    unlike = np.zeros(len(a), bool)
    for name in COMPARED_FIGURES:
        one, other = a[name], b[name]
        both_constant = one.strides == (0,) and other.strides == (0,)
        repeated = name == "finite_abs_max" and one is a["abs_max"] and other is b["abs_max"]
        if repeated or (both_constant and len(one) and one[0] == other[0]):
            continue
        unlike |= one != other
    return unlike


def _figure_and_scale(figure: str, a: Block, b: Block) -> tuple[Numbers, Numbers, Numbers]:
    """Return a figure on both sides and what its difference is relative to.

    The least magnitude is an accident of cancellation: what rounding does to it is in proportion to the largest.
    """
    one, other = a[figure], b[figure]
    scales = (a["finite_abs_max"], b["finite_abs_max"]) if figure == "abs_min" else (one, other)
    return one, other, np.fmax(*scales)


def _is_nonfinite(block: Block) -> Flags:
    counted = (block["nan_count"] > 0) | (block["posinf_count"] > 0) | (block["neginf_count"] > 0)
    return counted | ~np.isfinite(block["abs_max"])


class _Found:
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

    def add_figure(self, at: int, a: Numbers, b: Numbers, scale: Numbers) -> None:
        """Add a figure; unknown on a side (null) it agrees with everything."""
        if a.strides == (0,) and b.strides == (0,):  # unknown in every row
            return
        agree = (a == b) | (np.isnan(a) & np.isnan(b)) | (a == UNKNOWN) | (b == UNKNOWN)
        finite = np.isfinite(a) & np.isfinite(b)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            delta = np.abs(a - b)
            relative = np.where(finite & (scale > 0), delta / scale, np.inf)
            tolerated = finite & (delta <= np.maximum(self._limit * scale, self._least))
        self._add(at, np.where(agree, 0.0, relative), ~agree & ~tolerated)

    def add_count(self, at: int, a: npt.NDArray[Any], b: npt.NDArray[Any], skip: Flags) -> None:
        """Add a count; it must be equal."""
        agree = (a == b) | (a == UNKNOWN) | (b == UNKNOWN) | skip
        relative = np.abs(a - b) / np.maximum(np.maximum(a, b), 1)
        self._add(at, np.where(agree, 0.0, relative), ~agree)

    def _add(self, at: int, relative: Numbers, beyond: Flags) -> None:
        larger = (beyond > self.beyond) | ((beyond == self.beyond) & (relative > self.relative))
        self.relative = np.where(larger, relative, self.relative)
        self.figure[larger] = at
        self.beyond |= beyond
