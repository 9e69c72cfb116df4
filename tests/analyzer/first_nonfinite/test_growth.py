"""Growth against numpy's least squares and figures written down by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_analyzer.first_nonfinite.growth import bits_per_batch, growth_before
from overflow_analyzer.format.float_formats import FLOAT_FORMATS
from tests.analyzer.findings import bad
from tests.traces import frame, tensor

HALF = FLOAT_FORMATS["float16"]
points = st.lists(st.tuples(st.integers(0, 10**6), st.floats(min_value=1e-30, max_value=1e30)), min_size=2, max_size=30)


def test_a_figure_that_doubles_every_other_batch_grows_by_half_a_bit() -> None:
    assert bits_per_batch([(0, 1.0), (2, 2.0), (4, 4.0), (10, 32.0)]) == pytest.approx(0.5)


def test_a_figure_that_shrinks_has_a_negative_rate() -> None:
    assert bits_per_batch([(5, 8.0), (6, 4.0)]) == pytest.approx(-1.0)


def test_batches_that_are_one_float_have_no_rate() -> None:
    assert bits_per_batch([(2**62, 1.0), (2**62 + 1, 2.0)]) is None


@pytest.mark.parametrize("known", [[], [(3, 1.0)], [(3, 1.0), (3, 2.0)]])
def test_one_batch_has_no_rate(known: list[tuple[int, float]]) -> None:
    assert bits_per_batch(known) is None


@given(points)
def test_the_rate_is_numpys_slope(known: list[tuple[int, float]]) -> None:
    if len({batch for batch, _ in known}) < 2:
        assert bits_per_batch(known) is None
        return
    batches, magnitudes = (np.array(one, float) for one in zip(*known, strict=True))
    centred = batches - batches.mean()
    slope = np.linalg.lstsq(np.stack([centred, np.ones(len(centred))], 1), np.log2(magnitudes), rcond=None)[0][0]
    assert bits_per_batch(known) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def test_the_steps_grow_and_name_what_first_had_the_figure() -> None:
    # GIVEN the well-known gated block: wo gives 6.27e4 out, the block around it the same
    def linear(number: int, name: str, value: float, output: float) -> object:
        return frame(
            number, 0, name, tensor("input", "input[0]", abs_max=value), tensor("output", "output", abs_max=output)
        )

    before = [
        linear(0, "d.wi_0", 4.65, 37.0),
        linear(1, "d.wi_1", 4.65, 237.0),
        linear(2, "d.wo", 9740.0, 62700.0),
        linear(3, "d", 4.65, 62700.0),
    ]
    last = frame(4, 0, "dropout", tensor("input", "input[0]", abs_max=62700.0), bad("output", "output", inf=1))
    # WHEN / THEN
    steps = growth_before(last, before, HALF)  # type: ignore[arg-type]
    assert [(step.module_name, step.context, step.abs_max) for step in steps] == [
        ("d.wi_0", "input[0]", 4.65),
        ("d.wi_1", "output", 237.0),
        ("d.wo", "input[0]", 9740.0),
        ("d.wo", "output", 62700.0),
    ]
    assert steps[-1].share == pytest.approx(62700 / 65504)


@pytest.mark.parametrize("kept_share", [0.899, 0.9, 0.901, 0.5])
def test_the_input_and_output_of_a_dropout_are_one_step(kept_share: float) -> None:
    # GIVEN Linear, Dropout, Linear: the Dropout multiplies by 1/(1-p), and its output is the next module's input
    entered = 5000.0 * kept_share
    before = [
        frame(0, 0, "first", tensor("output", "output", abs_max=entered)),
        frame(
            1,
            0,
            "dropout",
            tensor("input", "input[0]", abs_max=entered),
            tensor("output", "output", abs_max=5000.0),
            module_class="Dropout",
        ),
    ]
    last = frame(2, 0, "second", tensor("input", "input[0]", abs_max=5000.0), bad("output", "output", inf=1))
    # WHEN / THEN the one step is named where it was made, on either side of any threshold
    assert [(step.module_name, step.abs_max) for step in growth_before(last, before, HALF)] == [("first", entered)]


def test_bad_tensors_and_integers_are_no_steps() -> None:
    tokens = tensor("input", "ids", abs_max=30000.0, dtype="int64")
    before = [frame(0, 0, "embed", tokens, bad("output", "output", inf=1))]
    assert growth_before(frame(1, 0, "m", bad("output", "output", inf=1)), before, HALF) == ()


def test_there_are_only_a_few_steps() -> None:
    before = [frame(at, 0, f"m{at}", tensor("output", "output", abs_max=2.0**at)) for at in range(15)]
    steps = growth_before(frame(15, 0, "last", bad("output", "output", inf=1)), before, HALF)
    assert [step.abs_max for step in steps] == [2.0**at for at in range(9, 15)]
