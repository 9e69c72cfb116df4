"""Values that do not fit their format: overflow, casts, masks that are added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from tests.integration.failures.row import (
    BF16,
    F16,
    F32,
    F64,
    Op,
    Row,
    causal,
    chain,
    evaluation,
    forward,
    lowest,
    named,
    normal,
    values,
)

if TYPE_CHECKING:
    from tests.integration.failures.row import Record

OVERFLOW: Final = ("overflow",)
CAST: Final = ("precision-cast",)
ADDED: Final = ("masks-added", "overflow")  # the sum does overflow


def scaled(module: nn.Module, factor: float, dtype: torch.dtype = F16) -> nn.Module:
    """A module whose weights are all one number."""
    for parameter in module.parameters():
        nn.init.constant_(parameter, factor)
    return module.to(dtype)


def attention(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (q @ q.transpose(-1, -2) / 3 + mask).softmax(-1) @ q


def encoder_that_overflows() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    made = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    for name in ("linear1", "linear2"):
        getattr(made.layers[0], name).weight.data.mul_(3000)
    return made.half()


def autocast(record: Record) -> None:
    model = nn.Linear(4, 2)
    with record(model), torch.autocast("cpu", dtype=F16):
        model(values([7e4, 1.0, 2.0, 3.0]))


def checkpointed(record: Record) -> None:
    model = chain(nn.Linear(4, 4), lambda x: x * 1e30 * 1e30 + 1)
    x = normal(2, 4).requires_grad_()
    with record(model):
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()


class Gated(nn.Module):
    """What overflows stands between two children."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = scaled(nn.Linear(4, 4), 60.0), scaled(nn.Linear(4, 2), 0.1)

    def forward(self, x: torch.Tensor) -> Any:
        up = self.up(x)
        return self.down(up * up)


def second_attention_overflows() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    made = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    made.layers[1].self_attn.in_proj_weight.data.mul_(1e5)
    return made.half()


ROWS: Final[dict[str, Row]] = {
    "the second layer's scores overflow under a causal mask that the first layer absorbs": Row(
        OVERFLOW,
        "layers.1.self_attn",
        forward(second_attention_overflows, normal(2, 6, 8, dtype=F16), causal(6, F16)),
        ("masked-row-softmax", "absorbed", "bad-batch"),
    ),
    "4 products of 200 x 100 in float16": Row(
        OVERFLOW, "0", forward(lambda: chain(scaled(nn.Linear(4, 2), 200.0)), torch.full((3, 4), 100.0, dtype=F16))
    ),
    "a convolution of 9 products of 100 x 100 in float16": Row(
        OVERFLOW,
        "0",
        forward(lambda: chain(scaled(nn.Conv2d(1, 1, 3), 100.0)), torch.full((1, 1, 5, 5), 100.0, dtype=F16)),
    ),
    "the same in an evaluation": Row(
        OVERFLOW,
        "1",
        evaluation(lambda: chain(nn.Identity(), scaled(nn.Linear(4, 2), 200.0)), torch.full((3, 4), 100.0, dtype=F16)),
    ),
    "scores of 300 x 300 in float16, under a mask of zeros": Row(
        OVERFLOW,
        "",
        forward(
            lambda: named("Attention", attention), normal(1, 5, 8, scale=300, dtype=F16), torch.zeros(5, dtype=F16)
        ),
        ("division-by-zero", "masked-row-softmax", "masks-added"),
    ),
    "scores overflow, and the softmax over them gives nan in whole rows": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(attention), torch.full((1, 4, 8), 200.0, dtype=F16), causal(4, F16)),
        ("masked-row-softmax", "inf-minus-inf", "bad-batch"),
    ),
    "a feed-forward overflows under a causal mask that its attention absorbs": Row(
        OVERFLOW,
        "layers.0.linear2",
        forward(encoder_that_overflows, normal(2, 6, 8, dtype=F16), causal(6, F16)),
        ("masked-row-softmax", "absorbed", "bad-batch"),
    ),
    "exp of 12 in float16 beside a zero": Row(
        OVERFLOW,
        "",
        forward(lambda: named("Reciprocal", torch.exp), values(12.0, 0.0, 1.0, dtype=F16)),
        ("division-by-zero", "out-of-domain"),
    ),
    "exp of 100 in float32": Row(
        OVERFLOW,
        "1",
        forward(lambda: chain(nn.Identity(), torch.exp), values([100.0, 1.0])),
        ("division-by-zero",),
    ),
    "exp of a log-variance of 200 between two modules": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x, head: head(x.exp()), head=nn.Linear(2, 2)), values([200.0, 1.0])),
        ("bad-batch",),
    ),
    "cosh of 90": Row(OVERFLOW, "", forward(lambda: Op(torch.cosh), values(90.0, -1.0)), ("out-of-domain",)),
    "the fourth power of 20 in float16": Row(
        OVERFLOW,
        "1",
        forward(lambda: chain(nn.Identity(), lambda x: x**4), values(20.0, -3.0, dtype=F16)),
        ("out-of-domain",),
    ),
    "a running sum of 100 x 1000 in float16": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x: x.cumsum(0)), torch.full((100,), 1000.0, dtype=F16)),
    ),
    "a sum of 100 x 1000 in float16": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x: x.sum(0)), torch.full((100, 2), 1000.0, dtype=F16)),
        ("divisor-overflow",),
    ),
    "a running product of 2s in float16": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x: x.cumprod(0)), torch.full((20,), 2.0, dtype=F16)),
    ),
    "a product over 20 2s in float16": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x: x.prod(0)), torch.full((20, 2), 2.0, dtype=F16)),
    ),
    "the norm of 10000 x 1000 in float16": Row(
        OVERFLOW,
        "",
        forward(
            lambda: Op(lambda x: x / x.norm(dim=-1, keepdim=True) * torch.linalg.vector_norm(x)),
            torch.full((2, 5000), 1000.0, dtype=F16),
        ),
        ("division-by-zero", "divisor-overflow"),
    ),
    "a mean of 300 squared in float16": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x: x.pow(2).mean(-1)), torch.full((2, 8), 300.0, dtype=F16)),
        ("division-by-zero",),
    ),
    "dropout divides 6.27e4 by 0.9": Row(
        OVERFLOW,
        "1",
        forward(lambda: chain(lambda x: x * 2, nn.Dropout(0.1)), torch.full((64,), 3.135e4, dtype=F16)),
    ),
    "dropout by hand: a mask of zeros and ones over what is kept": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x, m: x * m / 0.1), torch.full((4, 4), 3e4, dtype=F16), torch.eye(4, dtype=F16)),
        ("division-by-zero", "zero-times-inf"),
    ),
    "a product of 1e30s in float32": Row(
        OVERFLOW,
        "0",
        forward(lambda: chain(lambda x: x * x, nn.Linear(4, 2)), torch.full((2, 4), 1e30)),
        ("bad-batch",),
    ),
    "twice 3e38 in bfloat16": Row(
        OVERFLOW, "", forward(lambda: Op(lambda x: x * 2), values(3e38, 0.0, dtype=BF16)), ("division-by-zero",)
    ),
    "twice 40000 in float16": Row(
        OVERFLOW, "", forward(lambda: named("Logsumexp", lambda x: x * 2), values(40000.0, 1.0, dtype=F16))
    ),
    "3e38 added to itself": Row(
        OVERFLOW, "", forward(lambda: Op(lambda x, y: x + y), values(3e38, 1.0), values(3e38, 1.0)), ("masks-added",)
    ),
    "an embedding of 4000 times the root of 400 in float16": Row(
        OVERFLOW,
        "",
        forward(
            lambda: Op(lambda x, table: table(x) * 20.0, table=scaled(nn.Embedding(4, 3), 4000.0)), torch.tensor([0, 1])
        ),
        ("bad-batch",),
    ),
    "a square overflows before a batch norm, whose running statistics take it in": Row(
        OVERFLOW,
        "",
        forward(
            lambda: Op(lambda x, norm: norm(x * x), norm=nn.BatchNorm1d(2).half()),
            torch.full((3, 2), 300.0, dtype=F16),
        ),
        ("bad-buffer", "bad-batch"),
    ),
    "what stands between two children squares 300": Row(
        OVERFLOW, "", forward(Gated, torch.full((2, 4), 1.25, dtype=F16)), ("bad-batch",)
    ),
    "inf of an overflow is subtracted from itself by the next module": Row(
        OVERFLOW,
        "0",
        forward(
            lambda: chain(lambda x: x * x, lambda x: x - x.amax(-1, keepdim=True)), values([300.0, 300.0], dtype=F16)
        ),
        ("inf-minus-inf", "masked-row-softmax"),
    ),
    "inf of an overflow is multiplied by 0 in the same module": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x: x * x * (x - x)), values(300.0, 1.0, dtype=F16)),
        ("zero-times-inf", "division-by-zero"),
    ),
    "a running variance of 0 under an eps of 1e-5: 1000 times 316 in float16": Row(
        OVERFLOW,
        "0",
        evaluation(lambda: chain(still(nn.BatchNorm1d(2)).half()), torch.full((2, 2), 1000.0, dtype=F16)),
        ("division-by-zero", "bad-buffer"),
    ),
    "a forward that overflows is recomputed in the backward": Row(OVERFLOW, "1", checkpointed),
    "the square of 1e-30 is 0, but that of the weight overflows": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x, w: x * w * w, w=values(1e4, dtype=F16)), values(1.0, 0.0, dtype=F16)),
        ("underflow", "division-by-zero"),
    ),
    "small inputs, and a weight whose square overflows": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x, w: (w * w) + x, w=values(1e3, 2e3, dtype=F16)), values(1e-4, 2e-4, dtype=F16)),
        ("underflow",),
    ),
    "finfo.min is doubled": Row(
        OVERFLOW, "", forward(lambda: Op(lambda m: m * 2), lowest(3, 4)), ("masks-added", "masked-row-softmax")
    ),
    "a float32 input of 1e5 is scaled, cast, and then squared": Row(
        OVERFLOW, "", forward(lambda: Op(lambda x: (x / 100).half() ** 2), values(1e5, 1.0)), ("precision-cast",)
    ),
    "a count of -inf in rows of 4 beside a sum that overflows": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda m, x: m.exp().sum() * x), causal(4, F16), torch.full((4,), 60000.0, dtype=F16)),
        ("masked-row-softmax", "bad-batch", "absorbed", "zero-times-inf"),
    ),
    # casts
    "70000 is cast to float16": Row(
        CAST, "1", forward(lambda: chain(nn.Identity(), lambda x: x.half()), values(7e4, 1.0))
    ),
    "1e39 of float64 is cast to float32": Row(
        CAST, "", forward(lambda: Op(lambda x: x.float()), values(1e39, 1.0, dtype=F64))
    ),
    "1e6 is cast to float8 e5m2": Row(
        CAST, "", forward(lambda: Op(lambda x: x.to(torch.float8_e5m2)), values(1e6, 1.0))
    ),
    "600 is cast to float8 e4m3fn, which has no inf: torch gives 448": Row(
        ("nothing",),
        "",
        forward(lambda: Op(lambda x: x.to(torch.float8_e4m3fn)), values(600.0, 1.0)),
        ("precision-cast", "out-of-domain"),
    ),
    "70000 is copied into a float16 buffer": Row(
        CAST, "", forward(lambda: Op(lambda x: torch.zeros(2, dtype=F16).copy_(x)), values(7e4, 1.0))
    ),
    "autocast casts 70000 at a linear layer's input": Row(CAST, "", autocast, ("overflow",)),
    "70000 is cast between two modules, beside zeros": Row(
        CAST,
        "",
        forward(lambda: Op(lambda x, head: head(x.half()), head=nn.Linear(3, 2).half()), values([7e4, 0.0, 1.0])),
        ("division-by-zero", "bad-batch"),
    ),
    # masks that are added
    "finfo.min of float16 is added to itself": Row(
        ADDED, "", forward(lambda: Op(torch.add), lowest(3, 4), lowest(1, 4)), ("out-of-domain", "masked-row-softmax")
    ),
    "finfo.min of bfloat16 is added to itself before a module": Row(
        ADDED,
        "",
        forward(
            lambda: Op(lambda a, b, head: head(a + b), head=nn.Linear(4, 2).to(BF16)),
            lowest(3, 4, dtype=BF16),
            lowest(1, 4, dtype=BF16),
        ),
        ("bad-batch", "masked-row-softmax"),
    ),
    "finfo.min of bfloat16 is added to itself, and a softmax takes it in": Row(
        (*ADDED, "absorbed"),
        "0",
        forward(lambda: chain(lambda a: a + a, nn.Softmax(-1)), lowest(3, 4, dtype=BF16)),
        ("literal", "masked-row-softmax"),
    ),
    "finfo.min of float32 is added to itself in the attention": Row(
        ADDED, "0", forward(lambda: chain(lambda m: m + m), lowest(4, 4, dtype=F32)), ("literal",)
    ),
    "finfo.min of float16 is added to a score of -100": Row(
        ADDED, "", forward(lambda: Op(torch.add), lowest(2, 4), torch.full((2, 4), -100.0, dtype=F16))
    ),
}


def still(norm: Any) -> nn.Module:
    """A batch norm whose running variance is 0."""
    norm.running_var.zero_()
    made: nn.Module = norm
    return made
