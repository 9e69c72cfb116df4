"""How much paired rows may differ, row by row: what came before decides how coarse a row may be."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from overflow_analyzer.diff.compare.differences import (
    COMPARED_FIGURES,
    Differences,
    FigureDifferences,
    is_finite,
    is_nonfinite,
)
from overflow_analyzer.diff.compare.tolerance import MOST_TOLERATED
from overflow_analyzer.diff.stream.block import differ, looked_up, unlike
from overflow_analyzer.diff.stream.grouping import run_starts
from overflow_analyzer.format.float_formats import FLOAT_FORMATS, float_format

if TYPE_CHECKING:
    from overflow_analyzer.diff.align.vocabulary import Shapes
    from overflow_analyzer.diff.compare.tolerance import Tolerance
    from overflow_analyzer.diff.naming import Naming
    from overflow_analyzer.diff.stream.block import Block


Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.float64]

_INTEGER_EPSILON: Final = FLOAT_FORMATS["float64"].epsilon
_SUMS_IN_ITSELF: Final = FLOAT_FORMATS["float32"].epsilon
_STATE_ROLES: Final = ("weight", "optimizer_state")
_PARAMETER_ROLES: Final = ("weight", "weight_grad")
_AFTER_UPDATES: Final = 64.0
"""By how much more two formats may differ once an update was computed in each: an update divides by small numbers."""
_FEWEST: Final = 1e4
"""By how much more a tensor of one element may differ where its inputs differ by rounding: of the order of 1 in so many
is small enough beside what it was summed from. That all of n elements are so small takes the n-th root of it."""
_FEW: Final = 8
"""Up to so many elements may all but vanish in one run."""


class ToleranceChecker:
    """Compares pairs in order of execution and remembers how coarse what came before was.

    Args:
        tolerance: What is taken for rounding.
        naming: What dtypes, roles and shapes stand for.
        coarseness: Of what came before the first pair.
    """

    def __init__(self, tolerance: Tolerance, naming: Naming, *, coarseness: float = 0.0) -> None:
        self._tolerance = tolerance
        self._is_default = tolerance.rtol is None and not tolerance.exact
        self._naming = naming
        self.coarseness = coarseness
        """The coarsest epsilon among the pairs so far that differed at all."""
        self._first_step = 0
        self._batch: int | None = None
        self._coarseness_before_batch = 0.0

    def compare(self, a: Block, b: Block) -> Differences:
        """Return how the rows of ``a`` differ from those of ``b``, row i from row i."""
        unequal, other_dtype = unlike(a, b, COMPARED_FIGURES), differ(a, b, "dtype")
        reshaped = differ(a, b, "shape") | differ(a, b, "kind")
        rows = np.flatnonzero(unequal | reshaped | other_dtype)
        if len(rows) < len(a):
            reshaped, other_dtype, unequal = reshaped[rows], other_dtype[rows], unequal[rows]
        some_a, some_b = (block if len(rows) == len(block) else block.take(rows) for block in (a, b))
        epsilon, least = self._coarser(some_a, some_b)
        is_state = self._has_role(some_a, _STATE_ROLES)
        inherited = self._inherit(some_a, epsilon, unequal | other_dtype, is_state)
        limit = self._limits(
            some_a, some_b, epsilon=epsilon, inherited=inherited, is_state=is_state, other_dtype=other_dtype
        )
        least = np.maximum(least, limit * self._parameter_scale(a, b, rows, inherited))
        found = FigureDifferences(limit, least)
        # Rounding makes zeros and unmakes them, and what cancels to nearly nothing is nothing but rounding: they are
        # only judged where nothing has been rounded otherwise.
        rounded = (other_dtype | (inherited > 0)) & (not self._tolerance.exact)
        found.add(some_a, some_b, {"zero_count": rounded, "abs_min": rounded & self._is_default})
        beyond = found.beyond | reshaped | (other_dtype & self._tolerance.exact)
        unit = np.where(epsilon > 0, epsilon, _INTEGER_EPSILON)
        nonfinite = (is_nonfinite(some_a) & is_finite(some_b)) | (is_finite(some_a) & is_nonfinite(some_b))
        return Differences(
            rows=rows,
            relative=found.relative,
            epsilons=found.relative / unit,
            tolerated_epsilons=limit / unit,
            figure=found.figure,
            beyond=beyond,
            reshaped=reshaped,
            nonfinite=nonfinite & ~some_a["ignored"] & ~some_b["ignored"],
        ).take(beyond | (found.relative > 0) | found.unjudged)

    def _has_role(self, block: Block, roles: tuple[str, ...]) -> Flags:
        found = np.zeros(len(block), bool)
        for role in roles:
            found |= block["role"] == self._naming.names["role"].code(role)
        return found

    def _coarser(self, a: Block, b: Block) -> tuple[Numbers, Numbers]:
        """Return the coarser dtype's epsilon (0 for integers), and the absolute difference that is always tolerated."""
        formats = [float_format(name) for name in self._naming.names["dtype"].names]
        epsilon = np.array([one.epsilon if one else 0.0 for one in formats] or [0.0])
        subnormal = np.array([one.smallest_subnormal if one else 0.0 for one in formats] or [0.0])
        in_a, in_b = a["dtype"], b["dtype"]
        # Half of a subnormal and more is lost by rounding; the absolute tolerance asked for comes on top.
        least = _larger(subnormal, in_a, in_b) if self._is_default else np.zeros(len(a))
        return _larger(epsilon, in_a, in_b), np.maximum(least, self._tolerance.atol)

    def _inherit(self, a: Block, epsilon: Numbers, unequal: Flags, is_state: Flags) -> Numbers:
        """Return the coarsest epsilon of the differing pairs before each pair.

        For a weight, which no forward changes, of those before its batch.
        """
        if not len(a):
            return epsilon
        running = np.maximum.accumulate(np.append(self.coarseness, np.where(unequal, epsilon, 0.0)))
        batches = a["batch"]
        starts = run_starts(batches)
        before = running[starts]
        if self._batch == batches[0]:
            before[0] = self._coarseness_before_batch
        if self.coarseness == 0.0 and running[-1] > 0:
            self._first_step = int(a["step"][int(np.argmax(running > 0)) - 1])
        self._batch, self._coarseness_before_batch = int(batches[-1]), float(before[-1])
        self.coarseness = float(running[-1])
        if before[0] == running[-1]:  # as coarse at the start as at the end
            return running[:-1]
        return np.where(is_state, np.repeat(before, np.diff(starts, append=len(batches))), running[:-1])

    def _limits(
        self, a: Block, b: Block, *, epsilon: Numbers, inherited: Numbers, is_state: Flags, other_dtype: Flags
    ) -> Numbers:
        """Return the relative difference that is tolerated for each pair."""
        tolerance = self._tolerance
        if not self._is_default:
            return np.full(len(a), tolerance.rtol or 0.0)
        # What agrees bit for bit hands no error on: depth counts from where rounding first made a difference.
        depth = np.maximum(np.maximum(a["step"], b["step"]) - self._first_step, 0)
        depth += np.maximum(a["in_batch"], b["in_batch"]) * ~is_state
        depth *= inherited > 0
        limits: Numbers = np.sqrt(np.maximum(depth, 0) + 1.0)  # a file may hold negative numbers
        coarseness = np.maximum(epsilon, inherited) * (epsilon > 0)
        limits *= coarseness
        # 16-bit products are summed in float32; what is summed in its own precision loses more to the order of sums.
        limits *= np.where(coarseness <= _SUMS_IN_ITSELF, 2 * tolerance.slack, tolerance.slack)
        drifted = (inherited > 0) & (other_dtype | (inherited > epsilon)) & ~is_state
        limits[drifted & (np.maximum(a["step"], b["step"]) > self._first_step)] *= _AFTER_UPDATES
        shapes = self._naming.shapes
        elements = np.where(
            (inherited > 0) & ~is_state, np.maximum(_elements(a, shapes["a"]), _elements(b, shapes["b"])), np.inf
        )
        limits *= np.power(_FEWEST, 1 / elements)
        most = np.where(elements <= _FEW, 1.0, MOST_TOLERATED)
        return np.minimum(limits, most, out=limits)

    def _parameter_scale(self, a: Block, b: Block, rows: npt.NDArray[np.int64], inherited: Numbers) -> Numbers:
        """Return for each of ``rows`` the largest magnitude among its module's parameters, or gradients; 0 for others.

        A bias whose true gradient is zero is nothing but the rounding of its updates: once something has been rounded
        otherwise, the parameters of a module are judged on the scale of the largest of them.
        """
        scale = np.zeros(len(a))
        rounded = inherited > 0
        if self._is_default and rounded.any():
            parameters = np.flatnonzero(self._has_role(a, _PARAMETER_ROLES))
            starts = run_starts(*(a[name][parameters] for name in ("batch", "module", "role")))
            if len(starts):
                own = np.fmax(a["finite_abs_max"][parameters], b["finite_abs_max"][parameters])
                sizes = np.diff(starts, append=len(own))
                scale[parameters] = np.repeat(np.fmax.reduceat(own, starts), sizes)
        return np.where(rounded, scale[rows], 0.0)


def _larger(values: Numbers, in_a: npt.NDArray[Any], in_b: npt.NDArray[Any]) -> Numbers:
    larger: Numbers = np.maximum(looked_up(values, in_a), looked_up(values, in_b))
    return larger


def _elements(block: Block, shapes: Shapes) -> Numbers:
    """Return how many elements each row's tensor has, at least one."""
    codes, rows = np.unique(block["shape"], return_inverse=True)
    counts = np.array([math.prod(shapes.shape(one) or ()) for one in codes.tolist()], float)
    found: Numbers = np.maximum(counts, 1.0)[rows]
    return found
