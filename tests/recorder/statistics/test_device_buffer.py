"""Figures of tensors on a device: torch operations (here on the host), no synchronization, and a real GPU."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.masked import masked_tensor

from overflow_recorder.statistics import DeviceBuffer, Figures, device_buffer, measure, torch_operations, values
from tests.recorder.statistics_oracle import COMPLEX, DTYPES, assert_same, expected, from_bits, tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overflow_recorder.statistics import BackendName, Statistics

HOST = torch.device("cpu")
NO_FIGURES = Figures(None, None, None, None, None, None)
STATISTICS: list[Statistics] = ["extrema", "full"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning"),
]


def _collected(tensors: list[torch.Tensor], statistics: Statistics) -> list[Figures]:
    buffer = DeviceBuffer(HOST, statistics, "torch")
    assert [buffer.measure(tensor) for tensor in tensors] == list(range(len(tensors)))
    return buffer.collect()


# --- the arithmetic, on the host


@pytest.mark.parametrize("statistics", STATISTICS)
@settings(max_examples=50)
@given(tensor=tensors())
def test_any_tensor_has_the_figures_of_a_plain_computation(tensor: torch.Tensor, statistics: Statistics) -> None:
    assert_same(_collected([tensor], statistics)[0], expected(tensor, statistics))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.itemsize == 1], ids=str)
def test_each_pattern_of_a_one_byte_dtype(dtype: torch.dtype) -> None:
    rows = [from_bits([pattern], dtype) for pattern in range(2 if dtype == torch.bool else 256)]
    for row, figures in zip(rows, _collected(rows, "full"), strict=True):
        assert_same(figures, expected(row, "full"))


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_numbers_by_magnitude(dtype: torch.dtype) -> None:
    tensor = torch.tensor([3 + 4j, complex(math.inf, 1), complex(math.nan, 1), 0j], dtype=torch.complex128).to(dtype)
    for view in (tensor, tensor.conj(), tensor[::2], tensor.expand(4, 4)):
        assert_same(_collected([view], "full")[0], expected(view, "full"))


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_each_pair_of_float4() -> None:
    pairs = torch.arange(256, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    rows = [*torch.split(pairs, 1), pairs]
    for row, figures in zip(rows, _collected(rows, "full"), strict=True):
        assert_same(figures, measure(row, "full"))


@pytest.mark.parametrize("magnitude", [5e-324, 1e-310, 1e-200, 1e200, 1.7976931348623157e308])
def test_means_of_extreme_float64_numbers(magnitude: float) -> None:
    figures = _collected([torch.full((1000,), -magnitude, dtype=torch.float64)], "full")[0]
    assert figures.abs_mean == pytest.approx(magnitude, rel=1e-12, abs=0)
    assert figures.rms == pytest.approx(magnitude, rel=1e-12, abs=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8], ids=str)
def test_a_tensor_of_several_pieces(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_operations, "_PIECE", 100)
    tensor = torch.linspace(-120, 120, 777).to(dtype)
    if dtype.is_floating_point:
        tensor[150], tensor[350], tensor[351] = math.nan, math.inf, -math.inf
    assert_same(_collected([tensor], "full")[0], expected(tensor, "full"))


def test_exotic_tensors() -> None:
    dense = torch.tensor([[0.0, -3.0], [math.inf, 1e-40]])
    mask = torch.tensor([[True, True], [False, True]])
    kinds = [dense.to_sparse(), dense.to_sparse_csr(), torch.zeros(2, 3).to_sparse(), masked_tensor(dense, mask)]
    kinds += [torch.nested.nested_tensor([dense, dense[:1]], layout=layout) for layout in (torch.strided, torch.jagged)]
    for tensor, figures in zip(kinds, _collected(kinds, "full"), strict=True):
        assert_same(figures, measure(tensor, "full"))
        assert figures.nan_count is not None


def test_a_mask_that_covers_everything() -> None:
    masked = masked_tensor(torch.tensor([math.nan]), torch.tensor([False]))
    assert _collected([masked], "full") == [Figures(None, None, None, 0, 0, 0, 0, 0, None, None)]


def test_what_only_a_wait_could_tell_is_unknown() -> None:
    duplicated = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (3,), check_invariants=False)
    holes = torch.nested.narrow(torch.ones(2, 5), 1, torch.tensor([0, 1]), torch.tensor([2, 3]), layout=torch.jagged)
    assert _collected([duplicated, holes, torch.ones(2, device="meta")], "extrema") == [NO_FIGURES] * 3


# --- the buffer


def test_slots_begin_anew_after_each_collect() -> None:
    buffer = DeviceBuffer(HOST, "extrema", "torch")
    for batch in (3.0, 4.0, 5.0):
        slots = [buffer.measure(torch.full((4,), batch + step)) for step in range(3)]
        assert slots == [0, 1, 2]
        assert [figures.abs_max for figures in buffer.collect()] == [batch, batch + 1, batch + 2]


def test_the_buffer_grows_and_forgets_nothing() -> None:
    buffer = DeviceBuffer(HOST, "extrema", "torch")
    for count in (1300, 5, 1500):
        for number in range(count):
            buffer.measure(torch.tensor([float(number)]))
        assert [figures.abs_max for figures in buffer.collect()] == list(range(count))


def test_an_empty_buffer() -> None:
    buffer = DeviceBuffer(HOST, "extrema", "torch")
    assert buffer.collect() == []
    buffer.measure(torch.empty(0))
    assert buffer.collect() == [Figures(None, None, None, 0, 0, 0)]


class Broken:
    """A backend whose compiler fails."""

    columns = 3
    calls = 0

    def reset(self, rows: torch.Tensor) -> None:
        rows.zero_()

    def enqueue(self, values: Any, rows: torch.Tensor, index: int) -> None:
        self.calls += 1
        raise RuntimeError("no compiler")


def test_torch_operations_take_over_where_triton_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken()
    monkeypatch.setattr(device_buffer, "quick_backend", lambda *_: broken)
    buffer = DeviceBuffer(HOST, "extrema", "triton")
    for _ in range(3):
        buffer.measure(torch.tensor([2.0, -7.0]))
    assert buffer.collect() == [Figures(2.0, 7.0, 7.0, 0, 0, 0)] * 3
    # THEN it was tried once, and said so once
    assert broken.calls == 1
    assert [record.message for record in caplog.records] == [
        "Triton kernels are switched off, torch operations measure instead: no compiler"
    ]


def test_a_backend_asked_for_by_name_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "overflow_recorder.statistics.triton.kernels", None)
    with pytest.raises(ImportError):
        DeviceBuffer(HOST, "extrema", "triton")
    DeviceBuffer(HOST, "extrema")


# --- no synchronization: a fake CUDA tensor has no values, and raises where the host would wait for one


@pytest.fixture
def _fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fake tensors are taken for real ones, and their mode stays active while they are measured."""

    @contextmanager
    def no_grad() -> Iterator[None]:
        with torch.no_grad():
            yield

    monkeypatch.setattr(device_buffer, "quiet", no_grad)
    monkeypatch.setattr(values, "_missing", lambda _: None)
    monkeypatch.setattr(values, "has_memory", lambda _: True)
    with FakeTensorMode():
        yield


@pytest.mark.usefixtures("_fake_cuda")
def test_a_fake_cuda_tensor_raises_where_the_host_would_wait() -> None:
    # GIVEN the proof's own means: what upstream does for each tensor
    with pytest.raises(DataDependentOutputException):
        torch.ones(3, device="cuda").abs().max().item()
    with pytest.raises(DataDependentOutputException):
        bool(torch.ones(3, device="cuda").isnan().any())


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("dtype", [*DTYPES, *COMPLEX], ids=str)
@pytest.mark.usefixtures("_fake_cuda")
def test_measuring_on_cuda_never_waits(dtype: torch.dtype, statistics: Statistics) -> None:
    buffer = DeviceBuffer(torch.device("cuda"), statistics, "torch")
    tensor = torch.empty(8, 6, device="cuda", dtype=dtype)
    strided, scalar = tensor.as_strided((8, 3), (6, 2)), tensor.select(0, 0).select(0, 0)
    kinds = [tensor, tensor.t(), strided, tensor.unsqueeze(0).expand(3, 8, 6), scalar]
    for kind in kinds:
        buffer.measure(kind)
    # THEN each has a row to be decoded: nothing was given up on the way
    assert len(buffer._slots) == len(kinds)
    assert all(callable(slot) for slot in buffer._slots)
    rows = buffer._chunks[0]
    assert (rows.device.type, rows.dtype) == ("cuda", torch.float64)


@pytest.mark.usefixtures("_fake_cuda")
def test_measuring_sparse_and_masked_tensors_on_cuda_never_waits() -> None:
    buffer = DeviceBuffer(torch.device("cuda"), "full", "torch")
    dense = torch.ones(4, 4, device="cuda")
    buffer.measure(masked_tensor(dense, torch.ones(4, 4, dtype=torch.bool, device="cuda")))
    indices = torch.zeros(2, 1, dtype=torch.int64, device="cuda")
    coalesced = torch.sparse_coo_tensor(
        indices, dense.select(0, 0).narrow(0, 0, 1), (4, 4), check_invariants=False, is_coalesced=True
    )
    buffer.measure(coalesced)
    assert all(callable(slot) for slot in buffer._slots)


# --- a real GPU


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["torch", "triton"])
@pytest.mark.parametrize("statistics", STATISTICS)
def test_on_a_gpu(cuda: torch.device, statistics: Statistics, backend: BackendName) -> None:
    # GIVEN every dtype, in several layouts, small and large
    generator = torch.Generator().manual_seed(1)
    kinds = []
    for dtype in DTYPES:
        bits = torch.randint(0, 256, (3, 5, 7, max(dtype.itemsize, 1)), generator=generator, dtype=torch.uint8)
        tensor = (bits % 2).bool()[..., 0] if dtype == torch.bool else bits.view(dtype)[..., 0]
        kinds += [tensor, tensor.transpose(0, 2), tensor[:, ::2], tensor.unsqueeze(0).expand(4, 3, 5, 7)]
    kinds.append(torch.linspace(-9, 9, 5_000_000).to(torch.bfloat16))
    buffer = DeviceBuffer(cuda, statistics, backend)
    for kind in kinds:
        buffer.measure(kind.cuda())
    for kind, figures in zip(kinds, buffer.collect(), strict=True):
        assert_same(figures, expected(kind, statistics))


@pytest.mark.gpu
def test_a_gpu_is_never_waited_for(cuda: torch.device) -> None:
    buffer = DeviceBuffer(cuda, "full")
    tensor = torch.ones(1000, device=cuda)
    buffer.measure(tensor)  # compiles
    buffer.collect()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2000):
            buffer.measure(tensor)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(buffer.collect()) == 2000


@pytest.mark.gpu
def test_streams_of_a_gpu_are_ordered(cuda: torch.device) -> None:
    buffer = DeviceBuffer(cuda, "extrema")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    for step in range(50):
        with torch.cuda.stream(side):
            buffer.measure(torch.full((1_000_000,), float(step), device=cuda))
        buffer.measure(torch.full((1000,), 0.5, device=cuda))
        assert [figures.abs_max for figures in buffer.collect()] == [float(step), 0.5]


@pytest.mark.gpu
def test_a_device_that_is_not_the_current_one(cuda: torch.device) -> None:
    if torch.cuda.device_count() == 1:
        pytest.skip("needs two CUDA devices")
    other = torch.device("cuda", 1)
    for backend in ("torch", "triton"):
        buffer = DeviceBuffer(other, "extrema", backend)
        buffer.measure(torch.tensor([1.0, -2.0], device=other))
        assert buffer.collect() == [Figures(1.0, 2.0, 2.0, 0, 0, 0)]


@pytest.mark.gpu
def test_a_cuda_graph_is_captured_without_us(cuda: torch.device) -> None:
    buffer = DeviceBuffer(cuda, "extrema")
    tensor = torch.ones(10, device=cuda)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.add_(1)
        buffer.measure(tensor)
    graph.replay()
    assert buffer.collect() == [NO_FIGURES]
