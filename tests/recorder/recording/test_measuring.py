"""Every kind of tensor, through the recorder: one row each, figures wherever they can be had, never an exception."""

from __future__ import annotations

import gc
import math
import warnings
import weakref
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from overflow_recorder.recording.measuring import Measuring
from tests.recorder.recordings import EVERYTHING, Forward, entry, plain_figures, record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overflow_analyzer.format.frames import Entry

NAN, INF = float("nan"), float("inf")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, *UNSIGNED]


def row_of(tensor: Any, path: Path, **options: Any) -> Entry:
    """The row of a tensor that goes in and comes out of a module; both rows say the same."""
    model = nn.Identity()
    (frame,) = record(model, path, lambda: model(tensor), **options)
    assert [one.context for one in frame.entries] == ["input[0]", "output"]
    assert figures(frame.entries[0]) == figures(frame.entries[1])
    return frame.entries[1]


def figures(one: Entry) -> tuple[Any, ...]:
    found = (one.abs_min, one.abs_max, one.finite_abs_max, one.nan_count, one.posinf_count, one.neginf_count)
    return tuple("nan" if isinstance(value, float) and math.isnan(value) else value for value in found)


def expected_figures(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple("nan" if isinstance(value, float) and math.isnan(value) else value for value in plain_figures(tensor))


def quietly(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Make a tensor of a kind that torch itself warns about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


@pytest.mark.parametrize("special", [[], [NAN], [INF, -INF, -INF], [NAN, INF]])
@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8])
def test_float_widths(dtype: torch.dtype, special: list[float], tmp_path: Path) -> None:
    # GIVEN
    tensor = torch.tensor([5.0, -7.0, 0.0, -0.0, 0.25, *special]).to(dtype)

    # WHEN
    row = row_of(tensor, tmp_path / "run")

    # THEN
    assert (row.kind, row.dtype, row.device, row.layout) == ("tensor", str(dtype)[6:], "cpu", "strided")
    assert (row.shape, row.numel) == (tuple(tensor.shape), tensor.numel())
    assert figures(row) == expected_figures(tensor)


def test_nan_beside_finite_numbers_is_as_torch_prints_it(tmp_path: Path) -> None:
    row = row_of(torch.tensor([NAN, 5.0, -7.0]), tmp_path / "run")
    assert figures(row) == ("nan", "nan", 7.0, 1, 0, 0)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_widths(dtype: torch.dtype, tmp_path: Path) -> None:
    # GIVEN the ends of its range: int8's -128 has the magnitude 128
    limits = torch.iinfo(dtype)
    tensor = torch.tensor([3, limits.max, limits.min], dtype=dtype)

    # THEN
    row = row_of(tensor, tmp_path / "run")
    smallest = 0.0 if dtype in UNSIGNED else 3.0
    largest = float(limits.max if dtype in UNSIGNED else -limits.min)
    assert (row.dtype, figures(row)) == (str(dtype)[6:], (smallest, largest, largest, 0, 0, 0))


def test_a_bool_mask_and_a_uint16_given_by_position(tmp_path: Path) -> None:
    # GIVEN
    model = Forward(lambda x, mask, ids: x)
    mask, ids = torch.tensor([True, False]), torch.tensor([7, 65535], dtype=torch.uint16)

    # WHEN
    (frame,) = record(model, tmp_path / "run", lambda: model(torch.ones(2), mask, ids))

    # THEN
    assert (entry(frame, "input[1]").dtype, figures(entry(frame, "input[1]"))[:2]) == ("bool", (0.0, 1.0))
    assert (entry(frame, "input[2]").dtype, figures(entry(frame, "input[2]"))[:2]) == ("uint16", (7.0, 65535.0))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_by_magnitude(dtype: torch.dtype, tmp_path: Path) -> None:
    row = row_of(torch.tensor([3 + 4j, -1 + 0j, complex(NAN, 1)], dtype=dtype), tmp_path / "run")
    assert figures(row) == ("nan", "nan", 5.0, 1, 0, 0)


VIEWS = {
    "0-dim": torch.tensor(-3.0),
    "one row of many": torch.arange(12.0).reshape(3, 4)[1:2],
    "every other column": torch.arange(12.0).reshape(3, 4)[:, ::2],
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "expanded": torch.tensor([1.0, INF]).expand(1000, 2),
    "negated": torch.tensor([3 - 4j]).conj().imag,
    "requires grad": torch.tensor([1.0, -2.0], requires_grad=True),
    "a parameter": nn.Parameter(torch.tensor([1.0, -2.0])),
    "ten dimensions": torch.full([1] * 10, 2.0),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_views(kind: str, tmp_path: Path) -> None:
    row = row_of(VIEWS[kind], tmp_path / "run")
    assert figures(row) == expected_figures(VIEWS[kind].resolve_neg())
    assert row.numel == VIEWS[kind].numel()


def test_a_conjugated_view(tmp_path: Path) -> None:
    assert figures(row_of(torch.tensor([3 + 4j]).conj(), tmp_path / "run"))[:2] == (5.0, 5.0)


def test_an_empty_tensor(tmp_path: Path) -> None:
    row = row_of(torch.empty(0, 3), tmp_path / "run")
    assert (row.shape, row.numel, figures(row)) == ((0, 3), 0, (None, None, None, 0, 0, 0))


def test_an_inference_tensor_that_is_changed_in_place(tmp_path: Path) -> None:
    # GIVEN a tensor without a version
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)

    model = Forward(doubled)
    # WHEN
    with torch.inference_mode():
        (frame,) = record(model, tmp_path / "run", lambda: model(torch.ones(2)))
    # THEN it is read again
    assert (entry(frame, "input[0]").abs_max, entry(frame, "output").abs_max) == (1.0, 2.0)


DENSE = torch.tensor([[0.0, 0, 5, 1], [0, -7, 0, 1]])
SPARSE: dict[str, Callable[[], torch.Tensor]] = {
    "sparse_coo": DENSE.to_sparse,
    "sparse_csr": DENSE.to_sparse_csr,
    "sparse_csc": DENSE.to_sparse_csc,
    "sparse_bsr": lambda: DENSE.to_sparse_bsr((1, 2)),
}


@pytest.mark.parametrize("layout", SPARSE)
def test_sparse_tensors_count_the_implicit_zeros(layout: str, tmp_path: Path) -> None:
    row = row_of(quietly(SPARSE[layout]), tmp_path / "run", statistics="full")
    assert (row.layout, row.shape, row.numel) == (layout, (2, 4), 8)
    assert figures(row) == expected_figures(DENSE)
    assert row.zero_count == 4


class Subclass(torch.Tensor):
    pass


class Hostile(torch.Tensor):
    """Fails at any use, as code in development does."""

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("not implemented")


@pytest.mark.parametrize("kind", [Subclass, Hostile])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_subclasses(kind: Any, requires_grad: bool, tmp_path: Path) -> None:
    tensor = torch.tensor([1.0, -2.0], requires_grad=requires_grad).as_subclass(kind)
    assert figures(row_of(tensor, tmp_path / "run", roles=EVERYTHING)) == (1.0, 2.0, 2.0, 0, 0, 0)


def test_a_quantized_tensor(tmp_path: Path) -> None:
    tensor = quietly(lambda: torch.quantize_per_tensor(torch.tensor([1.0, -2.0]), 0.5, 0, torch.qint8))
    row = row_of(tensor, tmp_path / "run")
    assert (row.dtype, figures(row)[:2]) == ("qint8", (1.0, 2.0))


def test_a_masked_tensor(tmp_path: Path) -> None:
    from torch.masked import masked_tensor

    tensor = quietly(lambda: masked_tensor(torch.tensor([1.0, NAN, -3.0]), torch.tensor([True, False, True])))
    assert figures(row_of(tensor, tmp_path / "run")) == (1.0, 3.0, 3.0, 0, 0, 0)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor(layout: torch.layout, tmp_path: Path) -> None:
    parts = [torch.ones(2, 3), torch.full((1, 3), -5.0)]
    tensor = quietly(lambda: torch.nested.nested_tensor(parts, layout=layout))
    row = row_of(tensor, tmp_path / "run")
    assert (row.numel, figures(row)) == (9, (1.0, 5.0, 5.0, 0, 0, 0))


def freed() -> torch.Tensor:
    """A tensor whose memory was given back, as FSDP does between two uses of a parameter."""
    tensor = torch.ones(1_000_000)
    tensor.untyped_storage().resize_(0)
    return tensor


WITHOUT_VALUES: dict[str, Callable[[], Any]] = {
    "meta": lambda: torch.empty(3, device="meta"),
    "fake": lambda: FakeTensorMode().from_tensor(torch.ones(3)),
    "fake on a device": lambda: FakeTensorMode().from_tensor(torch.empty(3, device="meta")),
    "freed": freed,
    "not yet made": nn.UninitializedParameter,
    "bits": lambda: torch.empty(3, dtype=torch.bits8),
    "int4": lambda: torch.empty(3, dtype=getattr(torch, "int4")),  # noqa: B009  unknown to its stubs
}


@pytest.mark.parametrize("kind", WITHOUT_VALUES)
def test_without_values_it_is_a_row_all_the_same(kind: str, tmp_path: Path) -> None:
    tensor = WITHOUT_VALUES[kind]()
    row = row_of(tensor, tmp_path / "run")
    assert (row.kind, row.dtype) == ("tensor", str(tensor.dtype)[6:])
    assert (row.abs_min, row.abs_max, row.nonfinite) == (None, None, False)


def test_what_only_says_that_it_is_a_tensor(tmp_path: Path) -> None:
    row = row_of(Mock(spec=torch.Tensor), tmp_path / "run", roles=EVERYTHING)
    assert row.kind == "other"


def test_inside_functorch_transforms(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(3, 2)
    batch = torch.tensor([[1.0, 2, 3], [4, 5, 6]])

    # WHEN
    def gradient() -> Any:
        parameters = dict(model.named_parameters())
        loss = lambda parameters, x: torch.func.functional_call(model, parameters, (x,)).sum()  # noqa: E731
        return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, batch)["weight"]

    frame = record(model, tmp_path / "run", gradient, roles=EVERYTHING)[0]

    # THEN the whole batch's figures are there
    assert (entry(frame, "input[0]").abs_min, entry(frame, "input[0]").abs_max) == (1.0, 6.0)


# A tensor is read once.


def measuring() -> tuple[Measuring, list[str]]:
    names = [""]

    def position(name: str) -> int:
        if name not in names:
            names.append(name)
        return names.index(name)

    return Measuring("extrema", position), names


def test_the_same_tensor_is_read_once_until_it_changes_or_the_batch_ends() -> None:
    # GIVEN
    measure, _ = measuring()
    tensor = torch.ones(3)

    # THEN an unchanged tensor gives the very same answer
    first = measure(tensor)
    assert measure(tensor) is first

    # a change in place, which its version shows, a new one
    tensor.fill_(2)
    second = measure(tensor)
    assert second != first

    # and a new batch too, for some changes show no version
    tensor.data = torch.full((3,), 3.0)
    measure.forget()
    assert measure(tensor) not in {first, second}


def test_a_new_tensor_at_a_dead_ones_address_is_read() -> None:
    measure, _ = measuring()
    found = set()
    for number in range(50):
        tensor = torch.full((3,), float(number))
        found.add(measure(tensor).tensor)  # type: ignore[union-attr]
        del tensor
        gc.collect(0)
    assert len(found) == 50


def test_nothing_measured_is_kept_alive() -> None:
    measure, _ = measuring()
    tensor = torch.ones(3)
    alive = weakref.ref(tensor)
    measure(tensor)
    del tensor
    assert alive() is None
