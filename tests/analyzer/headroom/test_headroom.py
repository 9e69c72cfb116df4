"""Headroom, growth and underflow of every module, against figures by hand and a plain loop over the rows."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overflow_analyzer import NotRecordedError, open_trace
from overflow_analyzer.format.float_formats import FLOAT_FORMATS
from overflow_analyzer.headroom.headroom import Headroom, ModuleHeadroom, headroom_of
from tests.analyzer.findings import bad
from tests.traces import RUN, frame, tensor, write_trace

if TYPE_CHECKING:
    from overflow_analyzer.format.frames import Entry, Frame


def measured(path: Path, *frames: Frame, **options: Any) -> Headroom:
    return headroom_of(open_trace(write_trace(path / "run.parquet", frames)), **options)


def only(path: Path, *entries: Entry, **options: Any) -> ModuleHeadroom:
    """What a trace of one frame leaves its module."""
    (module,) = measured(path, frame(0, 0, "m", *entries, in_batch=0), **options).modules
    return module


def test_headroom_is_counted_in_doublings(tmp_path: Path) -> None:
    # GIVEN a quarter of float16's 65504 among smaller figures
    entries = (tensor("weight", "weight", abs_max=3.0), tensor("output", "output", abs_max=16376.0))
    # WHEN / THEN
    module = only(tmp_path, *entries)
    assert module.headroom_bits == pytest.approx(2.0)
    assert module.nearest is not None
    assert (module.nearest.context, module.nearest.abs_max, module.nearest.batch_number) == ("output", 16376.0, 0)


def test_each_tensor_is_held_against_its_own_format(tmp_path: Path) -> None:
    # GIVEN a float32 figure that is larger and further from its limit than a float16 one
    entries = (tensor("input", "x", abs_max=1e6, dtype="float32"), tensor("output", "output", abs_max=32752.0))
    module = only(tmp_path, *entries)
    assert module.nearest is not None
    assert module.nearest.dtype == "float16"
    assert module.headroom_bits == pytest.approx(1.0)


def test_would_this_run_fit_float16(tmp_path: Path) -> None:
    # GIVEN a bfloat16 figure of twice the limit, and one that fits
    large = frame(0, 0, "large", tensor("output", "output", abs_max=131008.0, dtype="bfloat16"), in_batch=0)
    small = frame(1, 0, "small", tensor("output", "output", abs_max=1.0, dtype="bfloat16"))
    headroom = measured(tmp_path, large, small, dtype="float16")
    assert [one.module_name for one in headroom.too_large] == ["large"]
    assert headroom.modules[0].headroom_bits == pytest.approx(-1.0)
    assert headroom.modules[0].batches_left == 0.0


def test_an_inf_is_infinitely_past_the_limit(tmp_path: Path) -> None:
    module = only(tmp_path, bad("output", "output", inf=1))
    assert (module.headroom_bits, module.batches_left, module.nonfinite_count) == (-math.inf, 0.0, 1)


def test_an_intended_inf_is_not_and_its_finite_part_counts(tmp_path: Path) -> None:
    mask = bad("input", "mask", neginf=2, note="ignored", finite_abs_max=32752.0)
    module = only(tmp_path, mask)
    assert module.headroom_bits == pytest.approx(1.0)
    assert module.nonfinite_count == 0


def test_nan_is_counted_and_leaves_the_finite_part(tmp_path: Path) -> None:
    module = only(tmp_path, bad("output", "output", nan=2, finite_abs_max=16376.0))
    assert module.headroom_bits == pytest.approx(2.0)
    assert module.nonfinite_count == 2


def test_masks_at_the_limit_are_left_out_and_counted(tmp_path: Path) -> None:
    # GIVEN the same mask in two batches
    entries = (tensor("input", "mask", abs_max=65504.0), tensor("output", "output", abs_max=16376.0))
    frames = [frame(number, number, "m", *entries, in_batch=0) for number in range(2)]
    headroom = measured(tmp_path, *frames)
    assert headroom.masks == 1
    assert headroom.modules[0].headroom_bits == pytest.approx(2.0)


def test_a_weight_at_the_limit_is_no_mask(tmp_path: Path) -> None:
    assert only(tmp_path, tensor("weight", "weight", abs_max=65504.0)).headroom_bits == 0.0


def test_modules_without_floats_have_no_headroom(tmp_path: Path) -> None:
    module = only(tmp_path, tensor("input", "ids", dtype="int64"))
    assert (module.nearest, module.headroom_bits, module.growth_bits, module.vanishing) == (None, None, None, None)


def test_gradients_do_not_count_as_near_the_limit(tmp_path: Path) -> None:
    # GIVEN gradients under a loss scale, which are meant to be large
    assert only(tmp_path, tensor("grad_output", "grad_output", abs_max=65000.0)).headroom_bits is None


def test_growth_and_what_is_left(tmp_path: Path) -> None:
    # GIVEN 2, 4, 8, 16 in batches 10, 12, 14, 16: half a bit a batch; 65504 / 16 = 2**11.99930
    frames = [
        frame(number, 10 + 2 * number, "m", tensor("output", "output", abs_max=2.0 ** (number + 1)), in_batch=0)
        for number in range(4)
    ]
    module = measured(tmp_path, *frames).modules[0]
    assert module.growth_bits == pytest.approx(0.5)
    assert module.batches_left == pytest.approx(11.99930 / 0.5, abs=1e-4)


def test_what_does_not_grow_has_no_end(tmp_path: Path) -> None:
    frames = [frame(at, at, "m", tensor("output", "output", abs_max=8.0 / 2**at), in_batch=0) for at in range(3)]
    module = measured(tmp_path, *frames).modules[0]
    assert module.growth_bits == pytest.approx(-1.0)
    assert module.batches_left is None


def test_growth_is_that_of_the_last_batches(tmp_path: Path) -> None:
    # GIVEN 100 batches that stand still and then 64 that grow by a tenth of a bit each
    sizes = [1.0] * 100 + [2.0 ** (0.1 * at) for at in range(64)]
    frames = [frame(at, at, "m", tensor("output", "o", abs_max=size), in_batch=0) for at, size in enumerate(sizes)]
    headroom = measured(tmp_path, *frames)
    assert headroom.batches == 64
    assert headroom.modules[0].growth_bits == pytest.approx(0.1)


def test_underflow_ranks_zeros_then_subnormals_then_nearness(tmp_path: Path) -> None:
    # GIVEN an output that is 0, one with subnormals, one near the smallest normal, one far from it
    def module(number: int, name: str, abs_max: float, **counts: int) -> Frame:
        entry = tensor("output", "output", abs_min=0.0, abs_max=abs_max, **counts)
        return frame(number, 0, name, entry, in_batch=number)

    headroom = measured(
        tmp_path,
        module(0, "far", 1.0, zero_count=0, subnormal_count=0),
        module(1, "near", 2.0**-13, zero_count=2, subnormal_count=0),
        module(2, "subnormal", 1.0, zero_count=0, subnormal_count=1),
        module(3, "zero", 0.0, zero_count=4, subnormal_count=0),
    )
    ranked = headroom.by_underflow()
    assert [one.module_name for one in ranked] == ["zero", "subnormal", "near", "far"]
    found = [one.vanishing for one in ranked if one.vanishing is not None]
    assert [one.zero_share for one in found] == [1.0, 0.0, 0.5, 0.0]
    assert [one.subnormal_share for one in found] == [0.0, 0.25, 0.0, 0.0]
    # THEN float16's smallest normal is 2**-14: one halving from 2**-13, fourteen from 1
    assert [one.floor_bits for one in found] == [-math.inf, 14.0, 1.0, 14.0]


def test_of_a_module_the_tensor_nearest_to_nothing_is_shown(tmp_path: Path) -> None:
    entries = (tensor("output", "output", abs_max=1.0), tensor("grad_output", "grad_output", abs_max=2.0**-20))
    module = only(tmp_path, *entries)
    assert module.vanishing is not None
    assert (module.vanishing.context, module.vanishing.floor_bits) == ("grad_output", -6.0)
    assert module.vanishing.zero_share is None


def test_subnormals_of_another_format_are_not_claimed(tmp_path: Path) -> None:
    # GIVEN subnormals counted in float32
    entry = tensor("output", "output", abs_max=1.0, dtype="float32", zero_count=0, subnormal_count=2)
    module = only(tmp_path, entry, dtype="float16")
    assert module.vanishing is not None
    assert module.vanishing.subnormal_share is None


def test_over_ranks_the_largest_counts_and_one_can_be_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    for rank, size in enumerate((16376.0, 32752.0)):
        frames = [frame(0, 0, "m", tensor("output", "output", abs_max=size), in_batch=0)]
        write_trace(path, frames, replace(RUN, rank=rank, world_size=2))
    trace = open_trace(path)
    assert headroom_of(trace).modules[0].headroom_bits == pytest.approx(1.0)
    assert headroom_of(trace, rank=0).modules[0].headroom_bits == pytest.approx(2.0)
    with pytest.raises(NotRecordedError):
        headroom_of(trace, rank=5)


def test_a_format_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'half' is no floating-point format; known are float16"):
        only(tmp_path, tensor("output", "output"), dtype="half")


def test_modules_are_ranked_with_the_worst_first(tmp_path: Path) -> None:
    sizes = {"a": 2.0, "b": 200.0, "c": 20.0}
    frames = [frame(at, 0, name, tensor("output", "o", abs_max=size)) for at, (name, size) in enumerate(sizes.items())]
    assert [one.module_name for one in measured(tmp_path, *frames).by_headroom()] == ["b", "c", "a"]


rows = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.sampled_from(["", "a", "b", "c.d"]),
        st.sampled_from(["weight", "input", "output", "grad_output"]),
        st.sampled_from(["float16", "bfloat16", "float32", "int64", "float8_e4m3fn"]),
        st.floats(min_value=0.0, max_value=400.0, allow_subnormal=False),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=50)
@given(rows, st.integers(1, 7), st.sampled_from([None, "float16"]))
def test_the_tally_is_that_of_a_plain_loop(
    some: list[tuple[int, str, Any, str, float]], frames_per_part: int, dtype: str | None
) -> None:
    # GIVEN any rows, in any parts
    some = sorted(some, key=lambda row: row[0])
    frames = [
        frame(at, batch, name, tensor(role, role, abs_max=size, dtype=kind), in_batch=at)
        for at, (batch, name, role, kind, size) in enumerate(some)
    ]
    with tempfile.TemporaryDirectory() as directory:
        path = write_trace(Path(directory) / "run.parquet", frames, frames_per_part=frames_per_part)
        headroom = headroom_of(open_trace(path), dtype=dtype)
    # WHEN each module's least headroom is computed row by row
    least: dict[str, float] = {}
    for _, name, role, kind, size in some:
        if kind in FLOAT_FORMATS and role != "grad_output":
            limit = FLOAT_FORMATS[dtype or kind].max
            least[name] = min(least.get(name, math.inf), math.log2(limit) - math.log2(size) if size else math.inf)
    # THEN it is the same
    found = {one.module_name: one.headroom_bits for one in headroom.modules if one.headroom_bits is not None}
    assert found == pytest.approx(least)
