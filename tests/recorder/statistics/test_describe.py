"""What tensors are called. Those that are not simply elements in memory are in test_statistics_exotic."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from overflow_recorder.statistics import describe, measure
from tests.recorder.statistics_oracle import COMPLEX, DTYPES


@pytest.mark.parametrize("dtype", [*DTYPES, *COMPLEX], ids=str)
@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
def test_the_names_are_torchs_own_without_torch(dtype: torch.dtype) -> None:
    description = describe(torch.empty(2, 3, dtype=dtype))
    assert getattr(torch, description.dtype) is dtype
    assert description[1:] == ("cpu", "strided", (2, 3), 6, None)


def test_a_parameter_a_scalar_and_an_empty_tensor() -> None:
    assert describe(torch.nn.Parameter(torch.ones(4)))[3:] == ((4,), 4, None)
    assert describe(torch.tensor(1.0))[3:] == ((), 1, None)
    assert describe(torch.empty(3, 0))[3:] == ((3, 0), 0, None)


def test_a_view_has_its_own_shape() -> None:
    assert describe(torch.ones(2, 1, 3).expand(2, 5, 3).transpose(0, 2))[3:] == ((3, 5, 2), 30, None)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize(
    ("layout", "blocksize"), [("sparse_coo", None), ("sparse_csr", None), ("sparse_csc", None), ("sparse_bsr", (1, 1))]
)
def test_a_sparse_tensor_counts_its_zeros_too(layout: str, blocksize: tuple[int, int] | None) -> None:
    sparse = torch.eye(3).to_sparse(layout=getattr(torch, layout), blocksize=blocksize)
    assert describe(sparse) == ("float32", "cpu", layout, (3, 3), 9, None)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch has no float4")
def test_two_values_an_element_are_counted_as_two() -> None:
    pairs = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert describe(pairs)[3:] == ((4,), 8, "two values an element")


def test_a_symbolic_size_is_left_unbound() -> None:
    # GIVEN a tensor whose size torch.compile has made a symbol
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    symbolic = mode.from_tensor(torch.ones(5, 3), symbolic_context=context)
    # THEN describing it binds the symbol to nothing
    assert describe(symbolic)[3:] == ((-1, 3), -1, "no values: fake")
    assert environment.guards == []
    assert measure(symbolic, "extrema").nan_count is None


class Strange(torch.Tensor):
    """A subclass whose every attribute raises."""

    @classmethod
    def __torch_function__(cls, *_: object) -> object:
        raise ValueError("no attribute of this tensor can be read")


def test_a_subclass_that_answers_nothing_is_described_all_the_same() -> None:
    strange = torch.ones(3).as_subclass(Strange)
    assert describe(strange) == ("float32", "cpu", "strided", (3,), 3, None)
    assert measure(strange, "extrema").abs_max == 1.0
