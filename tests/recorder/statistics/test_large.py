"""Tensors of more than one piece, contiguous or not, with one thread and with several."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from overflow_recorder.statistics import Figures, measure
from overflow_recorder.statistics.formats import FORMATS, PIECE_BYTES
from overflow_recorder.statistics.host import extrema
from overflow_recorder.statistics.host.extrema import LARGE_BYTES, Extremes
from overflow_recorder.statistics.memory import collapse
from tests.recorder.statistics_oracle import FLOAT8S, FLOATS, assert_same, expected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAYS = {
    "parallel": (2, math.inf, 0.0),
    "stalled": (2, -1.0, 0.0),
    "paused": (2, math.inf, math.inf),
    "serial": (1, 0.0, 0.0),
}
"""Threads, the seconds a piece may take, and until when threads are not used."""


@pytest.fixture(params=WAYS)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads, stall, pause_ends = WAYS[request.param]
    monkeypatch.setattr(extrema, "_PATIENCE", stall)
    monkeypatch.setattr(extrema, "_pause_ends", pause_ends)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


SIZES = [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, LARGE_BYTES, 5 * PIECE_BYTES + 3, LARGE_BYTES + (1 << 21) + 1]
"""Bytes, around where pieces and threads begin."""

LARGE = [size for size in SIZES if size >= LARGE_BYTES]


def _ramp(size: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of both signs, none of them 0, whose extrema are in the middle."""
    numbers = torch.linspace(-200, 300, size, dtype=torch.float64) + 1e-3
    return torch.where(numbers.abs() < 0.5, 0.75, numbers).to(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8S, torch.int8, torch.int32, torch.uint16], ids=str)
def test_extrema_wherever_they_are(dtype: torch.dtype, size: int) -> None:
    tensor = _ramp(size // dtype.itemsize, dtype)
    assert_same(measure(tensor, "extrema"), expected(tensor, "extrema"))


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("size", LARGE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn], ids=str)
def test_extrema_of_large_tensors_by_each_way(dtype: torch.dtype, size: int) -> None:
    tensor = _ramp(size // dtype.itemsize, dtype)
    assert_same(measure(tensor, "extrema"), expected(tensor, "extrema"))


def test_a_stall_sends_what_follows_the_serial_way(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN threads that need longer than they may
    monkeypatch.setattr(extrema, "_PATIENCE", -1.0)
    monkeypatch.setattr(extrema, "_pause_ends", 0.0)
    array = np.ones(LARGE_BYTES, np.int8)
    form = FORMATS[torch.float8_e5m2]
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert extrema.is_large(array, form)
        # THEN they read one piece, and are not called again for a while
        assert extrema.read_in_parallel(Extremes(form), array, form) == 1 << 21
        assert not extrema.is_large(array, form)
    finally:
        torch.set_num_threads(before)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("size", [PIECE_BYTES + 1, LARGE[-1]])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e5m2], ids=str)
def test_what_is_not_finite_is_counted_in_each_piece(dtype: torch.dtype, size: int) -> None:
    # GIVEN one element of each kind at the beginning, in the middle, and at the end
    tensor = _ramp(size // dtype.itemsize, dtype)
    middle, last = len(tensor) // 2, len(tensor) - 1
    for place, value in {0: math.inf, middle: -math.inf, middle + 1: -math.inf, last: math.inf}.items():
        tensor[place] = value
    assert_same(measure(tensor, "full"), expected(tensor, "full"))
    tensor[middle] = math.nan
    assert_same(measure(tensor, "full"), expected(tensor, "full"))


@pytest.mark.parametrize("size", [1000, LARGE_BYTES // 2])
def test_nothing_finite_anywhere(size: int) -> None:
    figures = measure(torch.full((size,), -math.inf, dtype=torch.bfloat16), "extrema")
    assert figures == Figures(math.inf, math.inf, None, 0, 0, size)
    assert measure(torch.full((size,), math.nan, dtype=torch.bfloat16), "extrema").nan_count == size


@pytest.mark.parametrize(
    "view",
    [
        lambda matrix: matrix.t(),
        lambda matrix: matrix[:, ::2],
        lambda matrix: matrix[::3, 5:],
        lambda matrix: matrix[:, :1],
        lambda matrix: matrix[3:4, 1:],
        lambda matrix: matrix.unsqueeze(1).expand(-1, 3, -1),
        lambda matrix: matrix.unfold(1, 3, 1),
        lambda matrix: matrix.unfold(0, 2, 1).permute(2, 1, 0),
    ],
    ids=["transposed", "strided", "sliced", "column", "row", "expanded", "overlapping", "permuted"],
)
@pytest.mark.parametrize("shape", [(900, 1100), (3, 700_000), (700_000, 3)], ids=str)
def test_large_views(view: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, int]) -> None:
    matrix = _ramp(math.prod(shape), torch.bfloat16).reshape(shape)
    matrix[shape[0] // 2, shape[1] // 2], matrix[-1, -1] = math.inf, math.nan
    assert_same(measure(view(matrix), "full"), expected(view(matrix), "full"))


def test_dense_tensors_are_read_in_the_order_of_memory() -> None:
    tensor = torch.empty(2, 3, 4, 5)
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)):
        view = tensor.permute(order)
        assert collapse(view.shape, view.stride()) == ((120,), (1,), 1)
    channels_last = tensor.to(memory_format=torch.channels_last)
    assert collapse(channels_last.shape, channels_last.stride()) == ((120,), (1,), 1)


def test_expanded_dimensions_are_read_once() -> None:
    tensor = torch.empty(4, 1, 6).expand(4, 5, 6).unsqueeze(0).expand(7, 4, 5, 6)
    assert collapse(tensor.shape, tensor.stride()) == ((24,), (1,), 35)
