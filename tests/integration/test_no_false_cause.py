"""A cause is claimed only where it is the right one: small trainings whose cause is known, and what looks like each.

Each row is a training that really fails, or is healthy, with the causes that are right for it. Anything else may be
named as possible at most: the names of modules, masks, zeros and counts of -inf mislead, and are no evidence.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
import torch
from torch import nn

from overflow_analyzer import Finding, find_first_nonfinite, open_trace
from overflow_recorder import NonFiniteError, TraceRecorder
from tests.analyzer.commands import analyze

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

INF = float("inf")
HALF: Final = torch.float16
LOWEST: Final = torch.finfo(HALF).min


class Row(NamedTuple):
    """A training and what is right to say of it."""

    train: Callable[[Path], None]
    causes: tuple[str, ...]
    """Right for it; whatever else is named must be no more than possible."""
    batch: int = 0
    claimed: bool = False
    """Whether what is recorded must be enough for a claim."""


class Call(nn.Module):
    """A module that does what it is told, under a class name of the test's choice."""

    def __init__(self, function: Callable[..., Any], **parameters: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in parameters.items():
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(*inputs, **dict(self.named_parameters()))
        return result


def called(name: str, function: Callable[..., Any], **parameters: torch.Tensor) -> nn.Module:
    made: nn.Module = type(name, (Call,), {})(function, **parameters)
    return made


def traced(model: Callable[[], nn.Module], *inputs: Callable[[], torch.Tensor]) -> Callable[[Path], None]:
    """One batch, recorded whole."""

    def train(path: Path) -> None:
        torch.manual_seed(0)
        made = model()
        with TraceRecorder(made, path, trace_batch_nums=[0]):
            made(*(one() for one in inputs))

    return train


def causal() -> torch.Tensor:
    return nn.Transformer.generate_square_subsequent_mask(6)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def overflowing_encoder() -> nn.Module:
    made = encoder().half()
    with torch.no_grad():
        for name in ("linear1", "linear2"):
            getattr(made.layers[0], name).weight.mul_(3000)  # type: ignore[index]  # a ModuleList
    return made


def attention(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (q @ q.transpose(-1, -2) / 3 + mask).softmax(-1) @ q


def soft_labels(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -(targets * scores.log_softmax(-1)).sum(-1)


def banned() -> torch.Tensor:
    return torch.randn(6, 5).masked_fill(torch.arange(5) > 2, -INF)


def one_hot() -> torch.Tensor:
    return nn.functional.one_hot(torch.randint(3, (6,)), 5).float()


def half_mask() -> torch.Tensor:
    mask = torch.zeros(1, 1, 4).half()
    mask[..., 3] = LOWEST
    return mask


# --- parameters and steps


def sgd_step(path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=200.0)
    with contextlib.suppress(NonFiniteError), TraceRecorder(model, path):
        for _ in range(2):
            (model(torch.randn(64, 4).half()).float() - 40).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def no_step(path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    roles = ("weight", "output", "weight_grad", "optimizer_state")
    with contextlib.suppress(NonFiniteError), TraceRecorder(model, path, roles=roles):
        model(torch.ones(8, 4).half()).sum().backward()
        optimizer.step()
        model(torch.ones(8, 4).half()).sum().backward()
        with torch.no_grad():
            model.weight.fill_(float("nan"))
        model(torch.ones(8, 4).half())


def attached_late(path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e30)
    for _ in range(5):
        model(torch.ones(1, 2)).square().mean().backward()
        optimizer.step()
    with contextlib.suppress(NonFiniteError), TraceRecorder(model, path):
        model(torch.ones(1, 2))


def adam(eps: float, scale: float, **options: Any) -> Callable[[Path], None]:
    def train(path: Path) -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1).half()
        optimizer = torch.optim.Adam(model.parameters(), eps=eps, foreach=False)
        with contextlib.suppress(NonFiniteError), TraceRecorder(model, path, **options):
            for _ in range(3):
                (model(torch.ones(16, 2).half()).float() * scale).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    return train


EVERYTHING: Final = {
    "every_n_batches": 1,
    "on_nonfinite": "ignore",
    "roles": ("weight", "output", "weight_grad", "optimizer_state"),
}
STEP: Final = ("parameter-went-bad",)
DIVISION: Final = ("division-by-zero",)
OVERFLOW: Final = ("overflow",)
MASKED: Final = ("masked-row-softmax",)
PRODUCT: Final = ("zero-times-inf",)
DOMAIN: Final = ("out-of-domain",)


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Callable[[], torch.Tensor]:
    return lambda: (torch.randn(*shape) * scale).to(dtype)


ROWS: Final[dict[str, Row]] = {
    # 0 x -inf under a class called softmax, in no full row
    "soft labels": Row(traced(lambda: called("SoftmaxCrossEntropy", soft_labels), banned, one_hot), PRODUCT),
    "a mask multiplied": Row(
        traced(lambda: called("Gate", lambda x, m: x.sum() + m * 0), normal(4, 4), lambda: torch.full((4,), INF)),
        (*PRODUCT, "bad-batch"),
    ),
    # an overflow beside a causal mask that its attention absorbs
    "feed forward": Row(
        traced(overflowing_encoder, normal(2, 6, 8, dtype=HALF), lambda: causal().half()), OVERFLOW, claimed=True
    ),
    "healthy causal mask": Row(traced(encoder, normal(2, 6, 8), causal), ("absorbed",), claimed=True),
    "a nan of a padding that is masked later": Row(
        traced(lambda: called("Pool", lambda x: torch.nan_to_num(x).mean()), lambda: torch.tensor([1.0, float("nan")])),
        ("absorbed",),
        claimed=True,
    ),
    "sgd step": Row(sgd_step, STEP, batch=1, claimed=True),
    "no step": Row(no_step, STEP, batch=2, claimed=True),
    "attached late": Row(attached_late, ("bad-parameter-at-start",), claimed=True),
    "adam's square overflows": Row(adam(1e-4, 1000, **EVERYTHING), ("optimizer-overflow",), claimed=True),
    "adam's square overflows, unrecorded gradient": Row(
        adam(1e-4, 1000, **{**EVERYTHING, "roles": ("weight", "optimizer_state")}), ("optimizer-overflow",)
    ),
    "zero mask": Row(
        traced(
            lambda: called("Attention", attention),
            normal(1, 5, 8, scale=300, dtype=HALF),
            lambda: torch.zeros(5).half(),
        ),
        OVERFLOW,
    ),
    "temperature": Row(
        traced(
            lambda: called(
                "Scores", lambda q, m, tau: q @ q.transpose(-1, -2) / tau + m, tau=torch.zeros(1, dtype=HALF)
            ),
            normal(1, 4, 8, dtype=HALF),
            half_mask,
        ),
        DIVISION,
    ),
    "one sample": Row(
        traced(lambda: nn.Sequential(called("dialog_encoder", lambda x: (x - x.mean(0)) / x.std(0))), normal(1, 4)),
        DIVISION,
    ),
    "a row of zeros is normalised": Row(
        traced(lambda: called("Log", lambda x: x / x.norm(dim=-1, keepdim=True)), lambda: torch.eye(4)[[0, 1, 2]] * 0),
        DIVISION,
    ),
    "1/x where x holds a zero": Row(
        traced(lambda: called("ExpGate", lambda x: 1 / x), lambda: torch.tensor([0.0, 1.0, 2.0])), DIVISION
    ),
    "a square root of something negative": Row(
        traced(lambda: called("Division", torch.sqrt), lambda: torch.tensor([-1.0, 1.0, 2.0])), DOMAIN
    ),
    "a logarithm of zero": Row(
        traced(lambda: called("Softmax", torch.log), lambda: torch.tensor([0.0, 1.0, 2.0])), DOMAIN
    ),
    "an exponential that does not fit": Row(
        traced(lambda: called("Reciprocal", torch.exp), lambda: torch.tensor([12.0, 1.0]).half()), OVERFLOW
    ),
    "a product that does not fit": Row(
        traced(lambda: called("Logsumexp", lambda x: x * 2), lambda: torch.tensor([40000.0, 1.0]).half()),
        OVERFLOW,
        claimed=True,
    ),
    "1/(x - c) beside figures near the limit": Row(
        traced(lambda: called("Linear", lambda x: x / (x - x)), lambda: torch.tensor([40000.0, 0.0]).half()),
        DIVISION,
    ),
    "a full row": Row(traced(lambda: nn.Softmax(-1), lambda: banned()[:, 3:]), (*MASKED, "bad-batch"), claimed=True),
    "a full row under another name": Row(
        traced(
            lambda: nn.Sequential(
                called("Fill", lambda x: x.masked_fill(torch.arange(3)[:, None] > 1, -INF)),
                called("Sorted", lambda x: x.softmax(-1)),
            ),
            normal(3, 5),
        ),
        MASKED,
    ),
    "a nan for each -inf is no full row": Row(
        traced(
            lambda: nn.Sequential(
                called("Fill", lambda x: x.masked_fill(torch.arange(3)[:, None] > 1, -INF)),
                called("Softmax", torch.sqrt),
            ),
            lambda: torch.rand(3, 5) + 1,
        ),
        DOMAIN,
    ),
    "two masks": Row(traced(lambda: called("Add", torch.add), half_mask, half_mask), ("masks-added",)),
    "the model was given a nan": Row(
        traced(lambda: nn.Linear(2, 2), lambda: torch.tensor([[1.0, float("nan")]])), ("bad-batch",), claimed=True
    ),
}


def finding_of(row: Row, path: Path) -> Finding:
    row.train(path)
    finding = find_first_nonfinite(open_trace(path))
    assert finding is not None
    return finding


@pytest.mark.filterwarnings("ignore:std")  # one sample has none: that is the point
@pytest.mark.parametrize("name", ROWS)
def test_no_cause_is_claimed_but_the_right_one(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    finding = finding_of(row, tmp_path / "trace.parquet")
    cause = finding.cause
    if cause.confidence in ("certain", "likely"):
        assert cause.name in row.causes, cause
    assert finding.frame.batch_number == row.batch
    assert cause.confidence in ("certain", "likely") or not row.claimed, cause


def test_a_healthy_training_exits_with_0_and_the_advice_makes_its_trace_clean(tmp_path: Path) -> None:
    # GIVEN a causal mask that is absorbed
    path = tmp_path / "trace.parquet"
    finding = finding_of(ROWS["healthy causal mask"], path)
    assert analyze("report", path).code == 0

    # WHEN the recorder is told what the explanation says
    advice = finding.cause.next_step.partition("`ignore=(")[2].partition(")`")[0]
    ignore = [one.strip('" ') for one in advice.split(",") if one.strip()]
    model = encoder()
    with TraceRecorder(model, tmp_path / "again.parquet", trace_batch_nums=[0], ignore=ignore):
        model(torch.randn(2, 6, 8), causal())

    # THEN nothing is left to find
    assert find_first_nonfinite(open_trace(tmp_path / "again.parquet")) is None


def test_what_was_absorbed_before_a_fault_is_not_acquitted(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    ROWS["feed forward"].train(path)
    report = analyze("report", path)
    assert report.code == 1
    assert "what took it in gave only finite values out" in report.out
    assert "not the fault" not in report.out
    assert "ignore=" not in report.out
