"""Measuring changes nothing and is seen by nobody."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from overflow_recorder.statistics import DeviceBuffer, Figures, describe, measure
from overflow_recorder.statistics.host import extrema
from overflow_recorder.statistics.host.extrema import LARGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = torch.device("cpu")

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
]


def _measure_on_device(tensor: torch.Tensor) -> Figures:
    buffer = DeviceBuffer(HOST, "full", "torch")
    buffer.measure(tensor)
    return buffer.collect()[0]


@pytest.fixture(autouse=True)
def _threads_never_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extrema, "_PATIENCE", math.inf)
    monkeypatch.setattr(extrema, "_pause_ends", 0.0)


MEASURES: list[Callable[[torch.Tensor], Figures]] = [lambda tensor: measure(tensor, "full"), _measure_on_device]


def _kinds() -> list[torch.Tensor]:
    """A tensor for each way through the code."""
    dense = torch.tensor([[1.0, -2.0, 0.0], [0.5, 3.0, -1.0]])
    return [
        dense,
        torch.nn.Parameter(dense.clone()),
        dense.t(),
        dense[:, ::2],
        dense.to(torch.complex64),
        dense.to(torch.float8_e5m2),
        dense.to_sparse(),
        dense.to_sparse_csr(),
        torch.quantize_per_tensor(dense, 0.5, 0, torch.qint8),
        torch.ones(LARGE_BYTES // 4 + 1),
    ]


KINDS = ["dense", "parameter", "transposed", "strided", "complex", "float8", "coo", "csr", "quantized", "large"]


@pytest.fixture(params=range(len(KINDS)), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> torch.Tensor:
    index: int = request.param
    return _kinds()[index]


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Dispatches(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's class is not typed
    """Notes each operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Notes each function of torch's that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("look", MEASURES, ids=["host", "device"])
@pytest.mark.parametrize("mode", [Dispatches, Functions])
def test_no_mode_sees_it(
    kind: torch.Tensor, mode: type[Dispatches | Functions], look: Callable[[torch.Tensor], Figures]
) -> None:
    wanted = look(kind)
    with mode() as active:
        figures = look(kind)
        describe(kind)
        assert active.seen == []
        # THEN the mode is active still
        kind.is_complex() if mode is Functions else kind.clone()
        assert active.seen != []
    assert figures == wanted


@pytest.mark.parametrize("look", MEASURES, ids=["host", "device"])
def test_the_tensor_and_the_random_state_are_as_before(
    kind: torch.Tensor, look: Callable[[torch.Tensor], Figures]
) -> None:
    version, grad_fn, state = kind._version, kind.grad_fn, torch.get_rng_state()
    numpy_state = str(np.random.get_state())  # noqa: NPY002 # the state that measuring might change
    look(kind)
    assert (kind._version, kind.grad_fn) == (version, grad_fn)
    assert torch.equal(torch.get_rng_state(), state)
    assert str(np.random.get_state()) == numpy_state  # noqa: NPY002


@pytest.mark.parametrize("look", MEASURES, ids=["host", "device"])
def test_no_graph_is_made(look: Callable[[torch.Tensor], Figures]) -> None:
    leaf = torch.tensor([1.0, -2.0], requires_grad=True)
    result = leaf * 3
    look(leaf)
    look(result)
    torch.autograd.backward(result.sum())
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("look", MEASURES, ids=["host", "device"])
@pytest.mark.parametrize(
    "make",
    [lambda: torch.ones(5), lambda: torch.ones(5, 3).t(), lambda: torch.ones(LARGE_BYTES // 4)],
    ids=["small", "transposed", "large"],
)
@pytest.mark.usefixtures("_no_collector")
def test_the_tensor_is_not_kept_alive(
    make: Callable[[], torch.Tensor], look: Callable[[torch.Tensor], Figures]
) -> None:
    tensor = make()
    reference = weakref.ref(tensor)
    buffer = DeviceBuffer(HOST, "extrema", "torch")
    look(tensor)
    buffer.measure(tensor)
    describe(tensor)
    del tensor
    # THEN nothing else holds it, not even a cycle that the garbage collector would find
    assert reference() is None


@pytest.mark.parametrize("look", MEASURES, ids=["host", "device"])
@pytest.mark.parametrize(
    "around",
    [
        torch.no_grad,
        torch.enable_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
        lambda: np.errstate(all="raise"),
    ],
    ids=["no_grad", "enable_grad", "inference_mode", "autocast", "default_device", "numpy_errors"],
)
def test_any_surroundings_give_the_same_figures(
    kind: torch.Tensor, around: Any, look: Callable[[torch.Tensor], Figures]
) -> None:
    wanted = look(kind)
    with around():
        assert look(kind) == wanted
    assert look(kind) == wanted


@pytest.mark.parametrize("look", MEASURES, ids=["host", "device"])
def test_an_inference_tensor(look: Callable[[torch.Tensor], Figures]) -> None:
    with torch.inference_mode():
        tensor = torch.tensor([1.0, -2.0]) * 2
    assert look(tensor)[:3] == (2.0, 4.0, 4.0)


def test_a_buffer_made_in_inference_mode_works_outside() -> None:
    buffer = DeviceBuffer(HOST, "extrema", "torch")
    with torch.inference_mode():
        buffer.measure(torch.ones(3))
    buffer.measure(torch.ones(3))
    assert buffer.collect() == [Figures(1.0, 1.0, 1.0, 0, 0, 0)] * 2


@pytest.mark.parametrize("look", MEASURES, ids=["host", "device"])
def test_odd_defaults_of_torch_do_not_matter(look: Callable[[torch.Tensor], Figures], kind: torch.Tensor) -> None:
    wanted = look(kind)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    torch.use_deterministic_algorithms(mode=True)
    try:
        assert look(kind) == wanted
    finally:
        torch.use_deterministic_algorithms(mode=False)
        torch.set_default_dtype(before)


def test_hooks_of_several_threads_do_not_disturb_each_other() -> None:
    # GIVEN threads that each measure tensors of their own, through one buffer and on the host
    buffer, wrong = DeviceBuffer(HOST, "extrema", "torch"), []
    slots: dict[int, float] = {}

    def work(number: int) -> None:
        values = [torch.full((5000 + number,), float(number * 100 + step)) for step in range(20)]
        for tensor in values:
            if measure(tensor, "extrema").abs_max != tensor[0].item():
                wrong.append(number)
            slots[buffer.measure(tensor)] = tensor[0].item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # THEN each has found its own figures
    assert wrong == []
    figures = buffer.collect()
    assert len(figures) == len(slots) == 160
    assert {slot: figures[slot].abs_max for slot in slots} == slots
