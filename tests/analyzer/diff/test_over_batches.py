"""The largest difference of each module over batches, by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from overflow_analyzer import diff_traces, open_trace
from overflow_analyzer.diff import DifferencesOverBatches
from overflow_analyzer.overview import recorded_batches
from tests.traces import frame, tensor, write_trace

if TYPE_CHECKING:
    from pathlib import Path

NAN, EPSILON = math.nan, 2.0**-10


def test_each_module_has_its_largest_difference_in_each_batch(tmp_path: Path) -> None:
    # GIVEN float16 outputs of two modules over batches 5 and 6; in B, batch 6, one is 2 and not 1, the other nan
    def run(name: str, one: float, nans: int) -> Path:
        figures = {"abs_min": one, "abs_max": one, "finite_abs_max": one}
        other = {"abs_max": NAN, "abs_min": NAN, "nan_count": nans} if nans else {}
        return write_trace(
            tmp_path / name,
            [
                frame(0, 5, "x", tensor("output", "output", 1.0, 1.0)),
                frame(1, 5, "y", tensor("output", "output", 1.0, 1.0)),
                frame(2, 6, "x", tensor("output", "output", **figures)),
                frame(3, 6, "y", tensor("output", "output", **{"abs_min": 1.0, "abs_max": 1.0, **other})),
            ],
        )

    a, b = open_trace(run("a", 1.0, 0)), open_trace(run("b", 2.0, 1))
    gathering = DifferencesOverBatches(recorded_batches(a))
    # WHEN the runs are compared
    diff_traces(a, b, over_batches=gathering)
    found = gathering.finish()
    # THEN equal is 0, |2 - 1| / 2 is half of 2**10 epsilons, and nan in one alone stands apart
    assert (found.modules, found.width) == (("x", "y"), 1)
    np.testing.assert_allclose(found.epsilons[0], [0, 0.5 / EPSILON])
    assert found.epsilons[1, 0] == 0
    np.testing.assert_array_equal(found.apart, [[NAN, NAN], [NAN, 1]])
