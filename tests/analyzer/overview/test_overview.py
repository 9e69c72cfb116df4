"""Every tensor over the batches of a run: figures by hand, by numpy, and the same as ``top`` says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer import headroom_of, open_trace
from overflow_analyzer.overview import overview, overview_of
from overflow_analyzer.overview.grid import Grid
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from overflow_analyzer.format.frames import Frame

FIXTURES = Path(__file__).parents[3] / "fixtures"
INF, NAN = math.inf, math.nan


def a_run(batches: range) -> list[Frame]:
    """A weight that doubles from batch to batch, beginning at 1, and an output of 4."""
    return [
        frame(
            2 * at,
            batch,
            "lin",
            tensor("weight", "weight", abs_max=2.0**at, finite_abs_max=2.0**at),
            tensor("output", "output", abs_max=4.0, finite_abs_max=4.0),
        )
        for at, batch in enumerate(batches)
    ]


def test_each_batch_has_its_figure(tmp_path: Path) -> None:
    # GIVEN batches 10, 12, 14
    found = overview_of(open_trace(write_trace(tmp_path / "run", a_run(range(10, 16, 2)))))
    # THEN a tensor is a row, in order of appearance, and a recorded batch a column
    assert [(one.module_name, one.role, one.context) for one in found.tensors] == [
        ("lin", "weight", "weight"),
        ("lin", "output", "output"),
    ]
    assert found.whole.first.tolist() == found.whole.last.tolist() == [10, 12, 14]
    assert found.whole.log2.tolist() == [[0, 1, 2], [2, 2, 2]]
    assert found.whole.optimizer_step.tolist() == [10, 12, 14]
    assert found.recent is None
    assert (found.whole.nan, found.whole.inf, found.whole.zero, found.whole.subnormal) == (None,) * 4


def test_a_bin_holds_the_largest_of_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN room for three bins and a run of eight batches, of which the last two are recent
    monkeypatch.setattr(overview, "_MOST_BINS", 3)
    monkeypatch.setattr(overview, "_RECENT_BATCHES", 2)
    found = overview_of(open_trace(write_trace(tmp_path / "run", a_run(range(8)))))
    assert found.whole.first.tolist() == [0, 3, 6]
    assert found.whole.last.tolist() == [2, 5, 7]
    assert found.whole.count.tolist() == [3, 3, 2]
    assert found.whole.log2[0].tolist() == [2, 5, 7]
    assert found.recent is not None
    assert found.recent.first.tolist() == [6, 7]
    assert found.recent.log2[0].tolist() == [6, 7]
    # THEN two bins can still become one
    halved = found.whole.halved()
    assert (halved.first.tolist(), halved.last.tolist(), halved.count.tolist()) == ([0, 6], [5, 7], [6, 2])
    assert halved.log2[0].tolist() == [5, 7]


def test_counts_shares_and_what_is_intended(tmp_path: Path) -> None:
    # GIVEN nan and inf, an intended inf, a share of zeros and subnormals, a mask of float16's limit, and all 0
    odd = tensor("output", "output", 0.0, NAN, finite_abs_max=1.0, nan_count=3, posinf_count=1, neginf_count=1)
    mask = tensor("input", "input[mask]", 0.0, 65504.0, zero_count=1, subnormal_count=2)
    intended = tensor("input", "input[0]", 0.0, INF, finite_abs_max=0.0, neginf_count=4, note="ignored")
    found = overview_of(open_trace(write_trace(tmp_path / "run", [frame(0, 0, "m", odd, mask, intended)])))
    assert found.whole.nan is not None
    assert found.whole.inf is not None
    assert found.whole.zero is not None
    assert found.whole.subnormal is not None
    np.testing.assert_array_equal(found.whole.nan[:, 0], [3, NAN, NAN])
    np.testing.assert_array_equal(found.whole.inf[:, 0], [2, NAN, NAN])
    np.testing.assert_array_equal(found.whole.zero[:, 0], [NAN, 0.25, NAN])
    np.testing.assert_array_equal(found.whole.subnormal[:, 0], [NAN, 0.5, NAN])
    np.testing.assert_array_equal(found.whole.log2[:, 0], [0, NAN, -INF])
    assert found.masks == 1


def test_ranks_have_a_strip_each_and_the_batches_of_all(tmp_path: Path) -> None:
    # GIVEN rank 0 with batches 3 and 4, rank 2 with 0 to 3
    for rank, batches in ((0, range(3, 5)), (2, range(4))):
        write_trace(tmp_path / "run", a_run(batches), replace(RUN, rank=rank, world_size=3))
    found = overview_of(open_trace(tmp_path / "run"))
    assert found.whole.first.tolist() == [0, 1, 2, 3, 4]
    assert found.whole.log2[0].tolist() == [0, 1, 2, 3, 1]
    assert found.strip.ranks == (0, 2)
    # log2(65504) less the larger of the weight's and the output's
    limit = math.log2(65504)
    headroom = [[NAN, NAN, NAN, limit - 2, limit - 2], [limit - 2, limit - 2, limit - 2, limit - 3, NAN]]
    np.testing.assert_allclose(found.strip.headroom, headroom, rtol=1e-6)


@pytest.mark.parametrize("name", ["growing-activations", "windowed", "diverging-weight", "clean"])
def test_fits_are_those_of_top(name: str) -> None:
    trace = open_trace(FIXTURES / name / "trace.parquet")
    fits = overview_of(trace).fits
    growths = {one.module_name: one.growth_bits for one in headroom_of(trace).modules if one.growth_bits is not None}
    assert fits.keys() == growths.keys()
    for module, growth in growths.items():
        assert fits[module].growth_bits == pytest.approx(growth, rel=1e-4, abs=1e-6)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 49), st.floats(-50, 50, width=32)), max_size=60),
    st.integers(1, 12),
    st.integers(1, 300),
)
def test_a_grid_is_the_maximum_of_its_cells(added: list[tuple[int, int, float]], bins: int, cells: int) -> None:
    # GIVEN a grid over 50 batches, with too little room or enough
    grid = Grid(50, most_bins=bins, most_cells=cells)
    for row, position, value in added:
        grid.grow(row + 1)
        grid.add("figure", np.array([row]), np.array([position]), np.array([value]))
    plane = grid.plane("figure")
    # THEN no more bins or cells are there than may be, and each holds the largest of what fell into it
    assert grid.bins <= bins
    assert grid.rows * grid.bins <= cells or grid.bins == 1
    if plane is not None:
        expected = np.full((grid.rows, grid.bins), NAN)
        for row, position, value in added:
            expected[row, position // grid.width] = np.fmax(expected[row, position // grid.width], value)
        np.testing.assert_array_equal(plane, expected)
