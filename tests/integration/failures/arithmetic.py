"""Arithmetic that has no value: divisions by zero, logarithms and roots, 0 x inf, inf - inf, and small numbers."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn
from torch.nn import functional

from tests.integration.failures.overflowing import still
from tests.integration.failures.row import (
    BF16,
    F16,
    INF,
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

DIVISION: Final = ("division-by-zero",)
DOMAIN: Final = ("out-of-domain",)
PRODUCT: Final = ("zero-times-inf",)
DIFFERENCE: Final = ("inf-minus-inf",)
UNDERFLOW: Final = ("underflow", "division-by-zero")  # what became 0 was then divided by
ROWS: Final[dict[str, Row]] = {
    # division by zero
    "1 / x where x holds a zero": Row(
        DIVISION,
        "",
        forward(lambda: named("ExpGate", lambda x: 1 / x), values(0.0, 1.0, 2.0)),
        ("overflow", "out-of-domain"),
    ),
    "the reciprocal of zero in bfloat16": Row(
        DIVISION, "1", forward(lambda: chain(nn.Identity(), torch.reciprocal), values(0.0, 1.0, dtype=BF16))
    ),
    "1 / sqrt(0)": Row(DIVISION, "", forward(lambda: Op(torch.rsqrt), values(0.0, 1.0, 4.0)), ("out-of-domain",)),
    "0 to the power of -1": Row(
        DIVISION, "", forward(lambda: Op(lambda x: x**-1.0), values(0.0, 1.0)), ("out-of-domain",)
    ),
    "a row of zeros is divided by its norm": Row(
        DIVISION,
        "1",
        forward(
            lambda: chain(nn.Identity(), named("Log", lambda x: x / x.norm(dim=-1, keepdim=True))),
            torch.diag(values(1.0, 0.0, 3.0)),
        ),
        ("out-of-domain", "underflow"),
    ),
    "a row of zeros is normalised with an eps of 0": Row(
        DIVISION, "", forward(lambda: Op(lambda x: functional.normalize(x, eps=0.0)), torch.diag(values(1.0, 0.0)))
    ),
    "a zero row in the cosine of two vectors with an eps of 0": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x: x / x.norm() @ x), torch.zeros(2, 2)),
    ),
    "the mean of what a mask keeps, where it keeps nothing": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x, m: (x * m).sum(-1) / m.sum(-1)), normal(2, 3), values([1.0, 1, 0], [0.0, 0, 0])),
        ("zero-times-inf", "masked-row-softmax"),
    ),
    "the mean of no tokens": Row(
        DIVISION, "", forward(lambda: Op(lambda x: x[:, 4:].mean(-1)), normal(2, 4)), ("out-of-domain",)
    ),
    "the deviation of one sample": Row(
        DIVISION,
        "0",
        forward(lambda: nn.Sequential(named("dialog_encoder", lambda x: (x - x.mean(0)) / x.std(0))), normal(1, 4)),
        ("out-of-domain",),
    ),
    "a constant column is divided by its deviation": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x: (x - x.mean(0)) / x.std(0)), torch.full((4, 2), 3.0)),
        ("inf-minus-inf", "out-of-domain"),
    ),
    "a constant row is scaled to its range": Row(
        DIVISION,
        "",
        forward(
            lambda: Op(
                lambda x: (x - x.amin(-1, keepdim=True)) / (x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True))
            ),
            values([1.0, 1.0], [1.0, 2.0]),
        ),
        ("inf-minus-inf",),
    ),
    "a layer norm with an eps of 0 over a constant row": Row(
        DIVISION, "0", forward(lambda: chain(nn.LayerNorm(4, eps=0.0)), torch.ones(2, 4)), ("out-of-domain",)
    ),
    "a group norm with an eps of 0 over zeros": Row(
        DIVISION,
        "0",
        forward(lambda: chain(nn.GroupNorm(2, 4, eps=0.0)), torch.zeros(2, 4, 3)),
        ("bad-parameter-at-start",),
    ),
    "a batch norm in evaluation with an eps of 0 and a running variance of 0": Row(
        DIVISION,
        "0",
        evaluation(lambda: chain(still(nn.BatchNorm1d(2, eps=0.0))), normal(4, 2)),
        ("bad-buffer", "overflow"),
    ),
    "an RMS norm by hand without eps over a padded row": Row(
        DIVISION,
        "1",
        forward(
            lambda: chain(nn.Identity(), lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True))),
            values([1.0, 2.0], [0.0, 0.0]),
        ),
        ("out-of-domain", "zero-times-inf"),
    ),
    "a temperature parameter of 0 beside a finfo.min mask": Row(
        DIVISION,
        "",
        forward(
            lambda: named("Scores", lambda q, m, tau: q @ q.transpose(-1, -2) / tau + m, tau=torch.zeros(1, dtype=F16)),
            normal(1, 4, 8, dtype=F16),
            lowest(1, 1, 4),
        ),
        ("overflow", "masks-added", "masked-row-softmax"),
    ),
    "x / (x - x) beside figures near the limit": Row(
        DIVISION,
        "",
        forward(lambda: named("Linear", lambda x: x / (x - x)), values(40000.0, 0.0, dtype=F16)),
        ("overflow", "underflow"),
    ),
    "x / sqrt(|x[4]|) where one row has a zero there": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x: x / x[:, 4:5].abs().sqrt()), normal(6, 8).index_fill(1, torch.tensor([4]), 0.0)),
        ("out-of-domain",),
    ),
    "a zero weight is a divisor": Row(
        DIVISION,
        "1",
        forward(lambda: chain(nn.Identity(), Op(lambda x, scale: x / scale, scale=values(1.0, 0.0))), normal(3, 2)),
        ("overflow", "bad-parameter-at-start"),
    ),
    "an eps of 1e-8 is 0 in float16": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x: x / (x.abs().sum(-1, keepdim=True) + 1e-8)), torch.zeros(2, 4, dtype=F16)),
        ("underflow",),
    ),
    "the remainder of a division by 0": Row(
        DIVISION, "", forward(lambda: Op(lambda x: torch.remainder(x, 0.0)), values(1.0, 2.0)), ("out-of-domain",)
    ),
    "all labels are ignored inside the model's own loss": Row(
        DIVISION,
        "loss",
        forward(
            lambda: Op(lambda x, y, head, loss: loss(head(x), y), head=nn.Linear(4, 3), loss=nn.CrossEntropyLoss()),
            normal(2, 4),
            torch.full((2,), -100),
        ),
        ("loss-outside-modules", "out-of-domain"),
    ),
    "1 / (x - c) in a parent, before its child": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x, head: head(1 / (x - 1)), head=nn.Linear(2, 2)), values([1.0, 3.0])),
        ("bad-batch", "overflow"),
    ),
    "a mask of zeros and ones as divisor": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x, m: x / m), normal(3, 3), torch.eye(3)),
        ("zero-times-inf", "masked-row-softmax"),
    ),
    "a float32 input of 1e5 beside a float16 division by 0": Row(
        DIVISION,
        "",
        forward(
            lambda: Op(lambda x, y: y / y.float().sub(y).half() + (x / 1e5).half()),
            values(1e5, 2e5),
            values(1.0, 2.0, dtype=F16),
        ),
        ("precision-cast", "overflow"),
    ),
    "a standardisation over no elements": Row(
        DIVISION, "", forward(lambda: Op(lambda x: x[x > 5].std() + x), values(1.0, 2.0)), ("out-of-domain",)
    ),
    "1 / (x - 5) beside figures near the limit, without a zero": Row(
        DIVISION, "0", forward(lambda: chain(lambda x: 1 / (x - 5)), values(5.0, 3e4, dtype=F16)), ("overflow",)
    ),
    "x / 0 before a batch norm, whose running statistics take it in": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x, norm: norm(x / (x - x)), norm=nn.BatchNorm1d(2)), normal(3, 2)),
        ("bad-buffer", "bad-batch"),
    ),
    "the mean over an empty batch": Row(
        DIVISION, "1", forward(lambda: chain(nn.Linear(2, 2), torch.mean), torch.zeros(0, 2)), ("bad-batch",)
    ),
    # outside of a function's domain
    "the logarithm of 0": Row(
        DOMAIN,
        "",
        forward(lambda: named("Softmax", torch.log), values(0.0, 1.0, 2.0)),
        ("division-by-zero", "masked-row-softmax"),
    ),
    "the logarithm of a negative number": Row(
        DOMAIN, "1", forward(lambda: chain(nn.Identity(), torch.log), values(-1.0, 2.0)), ("division-by-zero",)
    ),
    "the square root of a negative number": Row(
        DOMAIN, "", forward(lambda: named("Division", torch.sqrt), values(-1.0, 1.0, 2.0))
    ),
    "log1p of -1": Row(DOMAIN, "", forward(lambda: Op(torch.log1p), values(-1.0, 1.0)), ("overflow",)),
    "log2 of a zero in float16": Row(
        DOMAIN, "0", forward(lambda: chain(torch.log2), values(0.0, 8.0, dtype=F16)), ("underflow", "masks-added")
    ),
    "a fractional power of a negative number": Row(
        DOMAIN, "", forward(lambda: Op(lambda x: x**0.5), values(-2.0, 3.0))
    ),
    "the arc cosine of 1.1": Row(DOMAIN, "", forward(lambda: Op(torch.acos), values(1.1, 0.5))),
    "atanh of 1": Row(DOMAIN, "", forward(lambda: Op(torch.atanh), values(1.0, 0.5)), ("overflow", "division-by-zero")),
    "the logit of 0 and 1": Row(
        DOMAIN, "", forward(lambda: Op(torch.logit), values(0.0, 1.0, 0.5)), ("division-by-zero",)
    ),
    "erfinv of 1": Row(DOMAIN, "", forward(lambda: Op(torch.erfinv), values(1.0, 0.5)), ("overflow",)),
    "an entropy, p log p, of a class that never occurs": Row(
        DOMAIN,
        "",
        forward(lambda: Op(lambda p: -(p * p.log()).sum(-1)), values([0.0, 0.5, 0.5])),
        ("zero-times-inf", "division-by-zero"),
    ),
    "the logarithm of a mask of zeros and ones": Row(
        DOMAIN,
        "",
        forward(lambda: Op(lambda s, m: s + m.log()), normal(3, 3), torch.eye(3)),
        ("masks-added", "masked-row-softmax", "literal"),
    ),
    "a nan for each -inf of a mask, in whole rows": Row(
        DOMAIN,
        "1",
        forward(
            lambda: chain(
                lambda x: x.masked_fill(torch.arange(3)[:, None] > 1, -30000.0), named("Softmax", torch.sqrt)
            ),
            normal(3, 5).abs(),
        ),
        ("masked-row-softmax",),
    ),
    "the root of a variance that rounding made negative": Row(
        DOMAIN,
        "",
        forward(lambda: Op(lambda x: ((x * x).mean(-1) - x.mean(-1) ** 2 - 1e-3).sqrt()), torch.full((2, 4), 1.5)),
        ("division-by-zero", "overflow"),
    ),
    "the logarithm of a probability that is 0, with a loss of zeros beside it": Row(
        DOMAIN,
        "",
        forward(
            lambda: Op(lambda p, y, head: head(p.log() * y), head=nn.Linear(2, 2)),
            values([0.0, 1.0]),
            values([1.0, 0.0]),
        ),
        ("bad-batch", "zero-times-inf"),
    ),
    "a float32 input of 1e5 and the root of something negative in float16": Row(
        DOMAIN, "", forward(lambda: Op(lambda x: (x / -1e5).half().sqrt()), values(1e5, 2e5)), ("precision-cast",)
    ),
    "small inputs and the root of a negative one": Row(
        DOMAIN, "", forward(lambda: Op(torch.sqrt), values(-1e-5, 1e-5, dtype=F16)), ("underflow",)
    ),
    # 0 x inf
    "soft labels: a target of 0 times the -inf of a banned class": Row(
        PRODUCT,
        "",
        forward(
            lambda: named("SoftmaxCrossEntropy", lambda s, y: -(y * s.log_softmax(-1)).sum(-1)),
            normal(6, 5).masked_fill(torch.arange(5) > 2, -INF),
            functional.one_hot(torch.arange(6) % 3, 5).float(),
        ),
        ("masked-row-softmax", "bad-batch"),
    ),
    "a loss weight of 0 times the -inf of a masked score": Row(
        PRODUCT,
        "1",
        forward(lambda: chain(nn.Identity(), lambda x: torch.zeros(4) * x.masked_fill(x > 0, -INF)), normal(3, 4)),
        ("literal", "masked-row-softmax", "division-by-zero"),
    ),
    "attention weights of 0 times values of inf in the padding": Row(
        (*PRODUCT, "bad-batch"),
        "",
        forward(
            lambda: Op(lambda s, v: (s + causal(4)).softmax(-1) @ v),
            normal(4, 4),
            torch.ones(4, 2).index_fill(0, torch.tensor([3]), INF),
        ),
        ("masked-row-softmax", "overflow"),
        "certain",
    ),
    "a gate of 0 times an inf that the model was given": Row(
        (*PRODUCT, "bad-batch"),
        "0",
        forward(lambda: chain(named("Gate", lambda x: x * torch.zeros(2))), values(INF, 1.0)),
        ("division-by-zero", "absorbed"),
        "certain",
    ),
    "a one-hot matrix picks from a table with -inf": Row(
        PRODUCT,
        "",
        forward(
            lambda: Op(
                lambda i: (
                    functional.one_hot(i, 3).float() @ torch.zeros(3, 2).masked_fill(torch.eye(3)[:, :2].bool(), -INF)
                )
            ),
            torch.tensor([2, 1]),
        ),
        ("literal", "masked-row-softmax"),
    ),
    # inf - inf
    "a softmax by hand over a full row: -inf - -inf": Row(
        (*DIFFERENCE, "masked-row-softmax"),
        "",
        forward(
            lambda: Op(lambda s: (s - s.amax(-1, keepdim=True)).exp()),
            normal(2, 3).index_fill(0, torch.tensor([1]), -INF),
        ),
        ("bad-batch", "out-of-domain", "absorbed"),
    ),
    "two masks of inf are subtracted": Row(
        DIFFERENCE,
        "",
        forward(lambda: Op(lambda x: x.masked_fill(x > 0, INF) - x.masked_fill(x > 1, INF)), values(2.0, -1.0)),
        ("literal", "overflow"),
    ),
    "a running sum over inf and -inf": Row(
        DIFFERENCE,
        "",
        forward(
            lambda: Op(lambda x: (x.masked_fill(x > 1, INF) - x.masked_fill(x < -1, INF) * 1).cumsum(0)),
            values(2.0, -2.0, 1.0),
        ),
        ("literal", "overflow"),
    ),
    "the mean of inf and -inf": Row(
        DIFFERENCE,
        "0",
        forward(lambda: chain(lambda x: torch.where(x > 0, INF, -INF).mean()), values(1.0, -1.0)),
        ("literal", "division-by-zero"),
    ),
    "a softmax over +inf": Row(
        DIFFERENCE,
        "0",
        forward(lambda: chain(lambda x: x.masked_fill(x > 0, INF).softmax(-1)), values([1.0, -1.0])),
        ("masked-row-softmax", "overflow", "literal"),
    ),
    # underflow
    "squares of 1e-5 are 0 in float16, and their sum is divided by": Row(
        UNDERFLOW,
        "",
        forward(lambda: Op(lambda x: x / (x * x).sum(-1, keepdim=True)), torch.full((2, 4), 1e-5, dtype=F16)),
        ("overflow", "out-of-domain"),
    ),
    "a product of probabilities of 1e-5 is 0 in float16, and its logarithm -inf": Row(
        ("underflow", "out-of-domain"),
        "",
        forward(lambda: Op(lambda p: p.prod(-1).log()), torch.full((2, 4), 1e-5, dtype=F16)),
        ("division-by-zero", "masked-row-softmax"),
    ),
    "a softmax by hand: exp(-200) is 0 throughout": Row(
        UNDERFLOW,
        "",
        forward(lambda: Op(lambda s: s.exp() / s.exp().sum(-1, keepdim=True)), torch.full((2, 3), -200.0)),
        ("masked-row-softmax", "overflow"),
    ),
    "an earlier module's squares are 0 in float16, the next divides by them": Row(
        UNDERFLOW,
        "1",
        forward(lambda: chain(lambda x: x * x, lambda x: 1 / x), torch.full((2, 4), 1e-5, dtype=F16)),
        ("overflow", "bad-batch"),
    ),
    # a divisor of inf
    "a count of 70000 is inf in float16": Row(
        ("divisor-overflow", "overflow", "precision-cast"),
        "",
        forward(
            lambda: Op(lambda x, d: d(x, torch.ones(70000, dtype=F16).sum()), d=Op(torch.div)), normal(4, dtype=F16)
        ),
        ("bad-batch", "absorbed"),
        seen="d",
    ),
    "a length of 70000 is cast to float16, and the sum divided by it": Row(
        ("divisor-overflow", "overflow", "precision-cast"),
        "",
        forward(lambda: Op(lambda x, n, d: d(x, n.half()), d=Op(torch.div)), normal(4, dtype=F16), values(70000.0)),
        ("bad-batch", "absorbed"),
        seen="d",
    ),
    "a sum of squares is inf in float16, and what is divided by it 0": Row(
        ("divisor-overflow", "overflow"),
        "0",
        forward(
            lambda: chain(Op(lambda x: (x, (x * x).sum())), Op(lambda t: t[0] / t[1])),
            torch.full((4,), 300.0, dtype=F16),
        ),
        ("absorbed",),
    ),
}
