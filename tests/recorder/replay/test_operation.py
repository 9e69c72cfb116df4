"""Which operation made the inf/nan, on which line, and with which operands: expected from torch or by hand."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.recorder.replay.origins import Calling, operation_of, origin_of

if TYPE_CHECKING:
    from collections.abc import Callable

HALF = torch.float16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        scores = x @ x.transpose(-1, -2)
        return self.out(scores.softmax(-1) @ x)


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, start = inspect.getsourcelines(function)
    return start + next(position for position, line in enumerate(lines) if text in line)


def test_what_is_made_between_modules_is_found_in_the_module_around() -> None:
    # GIVEN scores of 8 * 200^2 = 320000 in float16, seen first as nan in the output layer's input
    model = nn.Sequential(Attention()).to(HALF)
    # WHEN
    origin = origin_of(model, torch.full((1, 3, 8), 200.0, dtype=HALF))
    operation = origin.operation
    # THEN
    assert operation is not None
    assert (origin.module_name, origin.context) == ("0.out", "input[0]")
    assert (origin.replayed, operation.module_name, operation.module_class) == ("0", "0", "Attention")
    assert (operation.name, operation.aten) == ("torch.matmul", "aten.bmm")
    assert operation.source is not None
    assert Path(operation.source.file).name == "test_operation.py"
    assert operation.source.line == line_of(Attention.forward, "scores =")
    assert operation.source.function == "Attention.forward"
    assert operation.source.code == "scores = x @ x.transpose(-1, -2)"
    assert [(one.dtype, one.shape, one.abs_max) for one in operation.operands] == [
        ("float16", (1, 3, 8), 200.0),
        ("float16", (1, 8, 3), 200.0),
    ]
    assert (operation.result.posinf_count, operation.result.numel) == (9, 9)
    assert operation.tried is not None
    assert (operation.tried.dtype, operation.tried.finite, operation.tried.abs_max) == ("float32", True, 320000.0)
    assert operation.cause == "overflow"


def test_where_the_module_is_torchs_own_the_line_that_called_it_is_named() -> None:
    # GIVEN a Linear whose product overflows: 4 * 100 * 60000
    layer = nn.Linear(4, 2, bias=False).to(HALF)
    nn.init.constant_(layer.weight, 100.0)

    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x)

    # WHEN
    origin = origin_of(Caller(), torch.full((3, 4), 60000.0, dtype=HALF))
    operation = origin.operation
    # THEN
    assert operation is not None
    assert (operation.name, operation.module_name, operation.module_class) == (
        "torch.nn.functional.linear",
        "layer",
        "Linear",
    )
    assert operation.source is None
    assert operation.called_at is not None
    assert operation.called_at.code == "return self.layer(x)"
    assert operation.called_at.line == line_of(Caller.forward, "self.layer(x)")
    assert {one.source for one in operation.operands} == {"input[0]", "weight of layer"}


def deeper(x: torch.Tensor) -> torch.Tensor:
    return x.log()


def test_the_calls_between_the_module_and_the_line_are_named() -> None:
    operation = operation_of(Calling(lambda x: deeper(x)), torch.tensor([1.0, -1.0]))  # noqa: PLW0108  a call between
    assert operation.source is not None
    assert (operation.source.function, operation.source.code) == ("deeper", "return x.log()")
    assert [one.function for one in operation.calls] == ["Calling.forward", "<lambda>"]


INF = math.inf
X = torch.tensor([[1.0, 0.0, -2.0], [3.0, 4.0, 5.0]])
ARITHMETIC: dict[str, tuple[Callable[[torch.Tensor], Any], str, str | None, str]] = {
    "log": (torch.log, "torch.log", "out-of-domain", "1 of 6 operands at 0"),
    "sqrt": (torch.sqrt, "torch.sqrt", "out-of-domain", "1 of 6 operands"),
    "rsqrt": (lambda x: x.abs().rsqrt(), "torch.rsqrt", "division-by-zero", "1 of 6 operands"),
    "acos": (torch.acos, "torch.acos", "out-of-domain", "4 of 6 operands"),
    "power": (lambda x: x.abs() ** -1.5, "torch.pow", "division-by-zero", "1 of 6 powers"),
    "0/0": (lambda x: x / x, "torch.div", "division-by-zero", "1 quotient of 0 / 0"),
    "1/0": (lambda x: 1 / x, "torch.div", "division-by-zero", "1 of 6 divisors is 0"),
    "zero norm": (lambda x: x * 0 / (x * 0).norm(dim=-1, keepdim=True), "torch.div", "division-by-zero", "2 of 2"),
    "exp": (lambda x: (x * 100).exp(), "torch.exp", "overflow", "4 of 6 exponents beyond 88.72"),
    "to half": (lambda x: (x * 2e4).half(), "torch.half", "precision-cast", "2 of 6 elements of float32"),
    "to dtype": (lambda x: (x * 2e4).to(HALF), "torch.Tensor.to", "precision-cast", "2 of 6 elements"),
    "factor inf": (lambda x: x * INF, "torch.mul", "zero-times-inf", "1 product"),
    "sum": (lambda x: (x.half() * 1e4).abs().sum(), "torch.sum", "overflow", "6 addends a result"),
    "cumulative sum": (lambda x: (x.half() * 1e4).cumsum(1), "torch.cumsum", "overflow", "3 addends a result"),
    "empty mean": (lambda x: x[:0].mean(), "torch.mean", "division-by-zero", "0 / 0"),
    "one sample": (lambda x: x[:1].std(0), "torch.std", "division-by-zero", "1 element with correction"),
    "masked row": (
        lambda x: x.masked_fill(x < 2, -INF).softmax(-1),
        "torch.softmax",
        "masked-row-softmax",
        "1 of 2 rows along dimension -1",
    ),
    "written in place": (lambda x: x.clone().mul_(1e38), "torch.Tensor.mul_", "overflow", ""),
    "a literal": (lambda x: torch.full_like(x, INF), "torch.full_like", "literal", "writes inf"),
    "ignored labels": (
        lambda x: functional.cross_entropy(x, torch.full((2,), -100)),
        "torch.nn.functional.cross_entropy",
        "division-by-zero",
        "2 of 2 labels are ignored",
    ),
    "masks added": (
        lambda x: x.half().fill_(-65504.0) + x.half().fill_(-65504.0),
        "torch.add",
        "masks-added",
        "6 elements",
    ),
    "inf - inf": (lambda x: torch.full_like(x, INF) - torch.full_like(x, INF), "torch.sub", "inf-minus-inf", "6 sums"),
}


@pytest.mark.parametrize("case", ARITHMETIC)
@pytest.mark.filterwarnings("ignore:std():UserWarning")
def test_each_kind_of_arithmetic_gets_the_figures_that_prove_it(case: str) -> None:
    function, name, cause, evidence = ARITHMETIC[case]
    operation = operation_of(Calling(function), X.clone())
    assert (operation.name, operation.cause) == (name, cause)
    assert evidence in " ".join(operation.evidence)


def test_an_infinite_mask_that_a_softmax_absorbs_is_not_the_finding() -> None:
    # GIVEN a causal mask and, after it, a product that overflows
    def function(x: torch.Tensor) -> torch.Tensor:
        weights = (x @ x.mT).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), -INF).softmax(-1)
        return weights @ (x * 1e30) * 1e30

    # WHEN
    operation = operation_of(Calling(function), torch.ones(3, 3))
    # THEN
    assert operation.name == "torch.mul"
    assert operation.scalars == ("other=1e+30",)


def test_the_place_in_the_result_is_told() -> None:
    # GIVEN [4, 3, 5] with a 0 at [2, 0, 4] and at [2, 1, 4]
    x = torch.ones(4, 3, 5)
    x[2, :2, 4] = 0
    # WHEN
    place = operation_of(Calling(torch.reciprocal), x).place
    # THEN
    assert (place.count, place.numel, place.first) == (2, 60, (2, 0, 4))
    assert (place.pattern, place.whole) == ((2, None, 4), False)


def test_the_models_own_input_is_named_with_the_place_in_it() -> None:
    # GIVEN one token of the third sample is nan
    x = torch.ones(4, 6)
    x[2, 5] = math.nan
    # WHEN
    origin = origin_of(nn.Sequential(nn.Sequential(nn.Linear(6, 2))), x)
    # THEN
    assert origin.operation is None
    assert origin.reason == (
        "it came with input[0] of the root module (Sequential): "
        "1 element of 24, [2, 5], in sample 2 if the first dimension is the batch"
    )
    assert origin.place is not None
    assert (origin.place.pattern, origin.place.whole) == ((2, 5), True)


def test_a_nonfinite_weight_needs_no_second_run() -> None:
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.weight, 1.0)
    with torch.no_grad():
        layer.weight[1] = math.inf
    origin = origin_of(nn.Sequential(layer), torch.ones(1, 3))
    assert origin.reason == "the weight itself is non-finite (weight): no operation of the forward made it"
    assert origin.place is not None
    assert (origin.place.pattern, origin.place.whole) == ((1, None), True)


def test_it_goes_outward_until_the_operation_is_found() -> None:
    # GIVEN the product is made in the outer module, the inner one only hands it on to its Linear
    inner = nn.Sequential(nn.Linear(3, 3))
    model = Calling(lambda x: inner(x * 1e30 * 1e30), inner)
    # WHEN
    origin = origin_of(model, torch.ones(1, 3))
    # THEN
    assert origin.module_name == "kids.0.0"
    assert origin.replayed == ""
    assert origin.operation is not None
    assert origin.operation.name == "torch.mul"
