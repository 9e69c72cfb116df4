"""The figures of tensors that are not simply elements in memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.masked import masked_tensor

from overflow_recorder.statistics import Figures, describe, measure
from tests.recorder.statistics_oracle import assert_same, expected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

NO_FIGURES = Figures(None, None, None, None, None, None)

pytestmark = [
    # Each kind warns of itself when it is made.
    pytest.mark.filterwarnings("ignore:Sparse:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning"),
]


# --- sparse: the stored values and the zeros that are not stored


def _with_gaps() -> torch.Tensor:
    dense = torch.zeros(6, 8)
    dense[1, 2], dense[3, 4], dense[5, 0] = -3.0, math.inf, 1e-40
    return dense


@pytest.mark.parametrize(
    "sparse",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        torch.Tensor.to_sparse_csc,
        lambda dense: dense.to_sparse_bsr((2, 2)),
        lambda dense: dense.to_sparse_bsc((2, 2)),
        lambda dense: dense.to_sparse(1),
    ],
    ids=["coo", "csr", "csc", "bsr", "bsc", "hybrid"],
)
def test_a_sparse_tensor_has_the_figures_of_its_dense_twin(sparse: Any) -> None:
    dense = _with_gaps()
    assert_same(measure(sparse(dense), "full"), expected(dense, "full"))


def test_a_sparse_tensor_without_zeros() -> None:
    dense = torch.full((2, 3), 2.0)
    assert_same(measure(dense.to_sparse(), "full"), expected(dense, "full"))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_a_sparse_tensor_that_stores_nothing_is_all_zeros(layout: torch.layout) -> None:
    sparse = torch.zeros(2, 3).to_sparse(layout=layout)
    assert measure(sparse, "full") == Figures(0.0, 0.0, 0.0, 0, 0, 0, 6, 0, 0.0, 0.0)


def test_values_at_one_place_are_summed() -> None:
    # GIVEN two finite float16 values at one place, whose sum overflows
    values = torch.tensor([60000.0, 60000.0, 1.0], dtype=torch.float16)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1]]), values, (4,), check_invariants=False)
    # THEN the figures are those of the tensor it stands for
    assert measure(sparse, "extrema") == Figures(0.0, math.inf, 1.0, 0, 1, 0)
    assert not sparse.is_coalesced()


def test_a_sparse_leaf_that_requires_grad() -> None:
    sparse = torch.eye(3).to_sparse().requires_grad_()
    assert measure(sparse, "extrema") == Figures(0.0, 1.0, 1.0, 0, 0, 0)


# --- nested


def _parts() -> list[torch.Tensor]:
    return [torch.tensor([[1.0, -4.0]]), torch.tensor([[math.nan, 2.0], [0.0, 3.0]])]


def _joined() -> torch.Tensor:
    return torch.cat(_parts())


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_a_nested_tensor(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor(_parts(), layout=layout)
    assert_same(measure(nested, "full"), expected(_joined(), "full"))
    assert_same(measure(nested.transpose(1, 2), "full"), expected(_joined(), "full"))
    description = describe(nested)
    assert (description.shape, description.numel) == ((2, -1, 2), 6)
    assert description.layout == str(layout).removeprefix("torch.")


def test_what_lies_between_the_parts_of_a_nested_tensor_is_not_read() -> None:
    padded = torch.full((2, 5, 3), math.nan)
    padded[0, 0:2], padded[1, 1:4] = 1.0, 2.0
    starts, lengths = torch.tensor([0, 1]), torch.tensor([2, 3])
    nested = torch.nested.narrow(padded, 1, starts, lengths, layout=torch.jagged)
    assert measure(nested, "extrema") == Figures(1.0, 2.0, 2.0, 0, 0, 0)


# --- masked


def test_masked_elements_do_not_count() -> None:
    masked = masked_tensor(torch.tensor([1.0, math.inf, -3.0]), torch.tensor([True, False, True]))
    assert measure(masked, "extrema") == Figures(1.0, 3.0, 3.0, 0, 0, 0)
    assert describe(masked).note == "masked"


def test_a_tensor_that_is_masked_whole_is_empty() -> None:
    masked = masked_tensor(torch.tensor([math.nan]), torch.tensor([False]))
    assert measure(masked, "extrema") == Figures(None, None, None, 0, 0, 0)


def test_a_masked_sparse_tensor() -> None:
    data, mask = torch.tensor([1.0, math.nan, 4.0]).to_sparse(), torch.tensor([True, False, True])
    kept = masked_tensor(data, torch.sparse_coo_tensor(data.indices(), mask, (3,)))
    assert measure(kept, "extrema") == Figures(1.0, 4.0, 4.0, 0, 0, 0)


# --- quantized: the numbers that are meant


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_a_quantized_tensor_is_dequantized(dtype: torch.dtype) -> None:
    quantized = torch.quantize_per_tensor(torch.tensor([0.5, -2.0, 0.0]), 0.5, 2, dtype)
    assert measure(quantized, "extrema") == Figures(
        0.0, quantized.dequantize().abs().max().item(), 2.0 if dtype != torch.quint8 else 1.0, 0, 0, 0
    )
    assert describe(quantized)[0::5] == (str(dtype).removeprefix("torch."), "dequantized")


def test_a_torchao_weight_is_dequantized() -> None:
    quantization = pytest.importorskip("torchao.quantization")
    linear = torch.nn.Linear(32, 16)
    quantization.quantize_(linear, quantization.Int8WeightOnlyConfig())
    weight = linear.weight
    assert_same(measure(weight, "full"), expected(weight.dequantize(), "full"))
    assert describe(weight)[3:] == ((16, 32), 512, "dequantized")


# --- distributed


@pytest.fixture
def _process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:DTensor random operators:UserWarning")  # torch 2.6, though nothing is random
@pytest.mark.usefixtures("_process_group")
def test_a_distributed_tensor_is_measured_by_its_local_shard() -> None:
    mesh = init_device_mesh("cpu", (1,))
    tensor = distribute_tensor(torch.arange(-4.0, 4.0).reshape(4, 2), mesh, [Shard(0)])
    for leaf in (tensor, torch.nn.Parameter(tensor)):
        assert measure(leaf, "extrema") == Figures(0.0, 4.0, 4.0, 0, 0, 0)
        assert describe(leaf)[3:] == ((4, 2), 8, "local shard of (4, 2)")


def test_a_collective_that_may_be_under_way() -> None:
    pending = AsyncCollectiveTensor(torch.tensor([2.0, -5.0]))
    assert measure(pending, "extrema") == Figures(2.0, 5.0, 5.0, 0, 0, 0)


# --- functorch


def test_inside_vmap_all_elements_are_measured() -> None:
    seen: list[Any] = []

    def look(row: torch.Tensor) -> torch.Tensor:
        seen.extend((measure(row, "extrema"), describe(row)))
        return row * 2

    batch = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
    result = torch.vmap(look)(batch)
    assert torch.equal(result, batch * 2)
    assert seen[0] == Figures(1.0, 6.0, 6.0, 0, 0, 0)
    assert seen[1][3:] == ((2, 3), 6, "behind a functorch transform")


def test_inside_grad_nothing_is_added_to_the_graph() -> None:
    seen: list[Figures] = []

    def loss(weights: torch.Tensor) -> torch.Tensor:
        seen.append(measure(weights, "full"))
        seen.append(measure(weights.to_sparse(), "full"))
        return (weights**2).sum()

    weights = torch.tensor([1.0, -3.0])
    assert torch.equal(torch.func.grad(loss)(weights), 2 * weights)
    for figures in seen:
        assert_same(figures, expected(weights, "full"))


# --- no values


def test_a_meta_tensor_has_no_values() -> None:
    tensor = torch.empty(2, 3, device="meta")
    assert measure(tensor, "full") == NO_FIGURES
    assert describe(tensor) == ("float32", "meta", "strided", (2, 3), 6, "no values: meta")


def test_a_fake_tensor_has_no_values() -> None:
    with FakeTensorMode():
        tensors = [torch.empty(2, 3), torch.empty(2, 3, device="cuda")]
        assert [measure(tensor, "full") for tensor in tensors] == [NO_FIGURES] * 2
    assert [measure(tensor, "full") for tensor in tensors] == [NO_FIGURES] * 2
    assert describe(tensors[1]) == ("float32", "cuda:0", "strided", (2, 3), 6, "no values: fake")


def test_an_uninitialized_parameter_has_no_values() -> None:
    parameter = torch.nn.LazyLinear(3).weight
    assert measure(parameter, "extrema") == NO_FIGURES
    assert describe(parameter)[3:] == ((0,), 0, "no values: uninitialized")


def test_memory_that_was_given_back_is_not_read() -> None:
    # GIVEN a parameter's storage, freed and grown again too small, as sharding does between two uses
    whole = torch.ones(1000)
    view, columns = whole[500:], whole.view(10, 100).t()[3:]
    whole.untyped_storage().resize_(0)
    for tensor in (whole, view, columns):
        assert measure(tensor, "extrema") == NO_FIGURES
    whole.untyped_storage().resize_(2000)
    for tensor in (whole, view, columns):
        assert measure(tensor, "extrema") == NO_FIGURES


class Wrapper(torch.Tensor):
    """A subclass without memory of its own, of a kind nobody knows."""

    @staticmethod
    def __new__(cls) -> Self:
        return torch.Tensor._make_wrapper_subclass(cls, (3,))

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise RuntimeError("must not be called")


def test_an_unknown_wrapper_has_no_values() -> None:
    assert measure(Wrapper(), "extrema") == NO_FIGURES
    assert describe(Wrapper())[3:] == ((3,), 3, "no values: Wrapper without memory")


class Counting(torch.Tensor):
    """A subclass with memory, which counts what is done to it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


def test_a_subclass_with_memory_is_read_and_does_not_notice() -> None:
    tensor = torch.tensor([1.0, -2.0]).as_subclass(Counting)
    Counting.calls = 0
    assert measure(tensor, "extrema") == Figures(1.0, 2.0, 2.0, 0, 0, 0)
    assert describe(tensor) == ("float32", "cpu", "strided", (2,), 2, None)
    assert Counting.calls == 0


# --- other layouts


def test_zeros_that_autograd_makes_without_memory() -> None:
    assert measure(torch._efficientzerotensor(2, 3), "full") == Figures(0.0, 0.0, 0.0, 0, 0, 0, 6, 0, 0.0, 0.0)


@pytest.mark.skipif(not torch._C._has_mkldnn, reason="this torch has no oneDNN")
def test_a_onednn_tensor() -> None:
    tensor = torch.tensor([[1.0, -2.0]]).to_mkldnn()
    assert measure(tensor, "extrema") == Figures(1.0, 2.0, 2.0, 0, 0, 0)
    assert describe(tensor).layout == "_mkldnn"


def test_a_lazy_clone_stays_one() -> None:
    clone = torch._lazy_clone(torch.tensor([1.0, -2.0]))
    assert measure(clone, "full").abs_max == 2.0
    assert measure(clone[1:], "full").abs_max == 2.0
    assert torch._C._is_cow_tensor(clone)  # type: ignore[attr-defined] # not in the stubs
