"""Idioms of networks: normalised graphs, quantisation, distributions, losses, attention, and what they break on."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.distributions import Normal
from torch.nn import functional

from tests.integration.failures.overflowing import scaled
from tests.integration.failures.row import BF16, F16, INF, NAN, Op, Row, chain, forward, normal, values

DIVISION: Final = ("division-by-zero",)
DOMAIN: Final = ("out-of-domain",)
OVERFLOW: Final = ("overflow",)
LITERAL: Final = ("literal",)
KEPT: Final = values(NAN, 0.0)
CLOSED: Final = values(-INF, -INF)
ISOLATED: Final = torch.diag(values(1.0, 0.0, 1.0))


def segment_softmax(scores: torch.Tensor) -> torch.Tensor:
    """Its second segment has no member."""
    totals = torch.zeros(3).index_add(0, torch.tensor([0, 0]), scores.exp())
    return scores.exp() / totals[torch.tensor([0, 2])]


def top_two(scores: torch.Tensor) -> torch.Tensor:
    return torch.full_like(scores, -INF).scatter(1, scores.topk(2).indices, scores)


def density(x: torch.Tensor) -> Any:
    distribution: Any = Normal(x, torch.zeros(2), validate_args=False)
    return distribution.log_prob(x)


def half(*shape: int, value: float) -> torch.Tensor:
    return torch.full(shape, value, dtype=F16)


ROWS: Final[dict[str, Row]] = {
    "a graph's isolated node has degree 0: 0 to the power of -1/2": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda a: torch.diag(a.sum(-1) ** -0.5) @ a), ISOLATED),
        ("zero-times-inf", "out-of-domain"),
    ),
    "the same by rsqrt, times the features": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda a, x: (a.sum(-1).rsqrt()[:, None] * a) @ x), ISOLATED, normal(3, 2)),
        ("zero-times-inf", "bad-batch"),
    ),
    "a softmax over segments, of which one has no member": Row(
        DIVISION, "", forward(lambda: Op(segment_softmax), normal(2)), ("masked-row-softmax", "overflow")
    ),
    "the scale of a tensor of zeros is 0 in a quantisation": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x: torch.round(x / (x.abs().max() / 127))), torch.zeros(4)),
        ("underflow",),
    ),
    "a count of 0 in integers": Row(
        DIVISION,
        "1",
        forward(lambda: chain(nn.Identity(), lambda x: x / torch.tensor([0, 1])), normal(2)),
        ("overflow",),
    ),
    "a mean by a boolean mask that is closed": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x, m: (x * m).sum(0) / m.sum(0)), normal(3, 2), torch.zeros(3, 2, dtype=torch.bool)),
        ("masked-row-softmax", "zero-times-inf"),
    ),
    "a weight norm of a vector of 0": Row(
        DIVISION,
        "",
        forward(lambda: Op(lambda x, v: x @ (v / v.norm(dim=1, keepdim=True)).T, v=torch.zeros(2, 2)), normal(3, 2)),
        ("bad-parameter-at-start", "out-of-domain"),
    ),
    "an RMS norm with an eps of 0 over zeros": Row(
        DIVISION, "", forward(lambda: nn.RMSNorm(4, eps=0.0), torch.zeros(2, 4)), ("zero-times-inf",)
    ),
    "the density of a normal distribution with scale 0": Row(
        (*DIVISION, *DOMAIN),
        "",
        forward(lambda: Op(density), normal(2)),
        ("overflow", "inf-minus-inf"),
    ),
    "a cross entropy whose labels have weight 0": Row(
        DIVISION,
        "",
        forward(
            lambda: Op(lambda x: functional.cross_entropy(x, torch.tensor([0, 0]), weight=torch.zeros(3))), normal(2, 3)
        ),
        ("loss-outside-modules", "out-of-domain"),
    ),
    "addcdiv by zero": Row(
        DIVISION, "", forward(lambda: Op(lambda x: torch.addcdiv(x, x, x * 0)), normal(2)), ("overflow",)
    ),
    "a division in place by zero": Row(
        DIVISION, "", forward(lambda: Op(lambda x: (x * 1).div_(x - x)), normal(3)), ("overflow", "out-of-domain")
    ),
    "a KL divergence by hand of a class with probability 0": Row(
        (*DOMAIN, "zero-times-inf"),
        "",
        forward(lambda: Op(lambda p, q: (p * (p / q).log()).sum()), values(0.0, 0.5), values(0.5, 0.5)),
        ("division-by-zero", "underflow"),
    ),
    "Gumbel noise of 1: log(-log(1))": Row(
        DOMAIN, "", forward(lambda: Op(lambda u: -torch.log(-torch.log(u))), values(1.0, 0.5)), ("overflow", "literal")
    ),
    "x log y of a negative y": Row(
        DOMAIN, "", forward(lambda: Op(lambda x: torch.xlogy(x, x - 2)), values(1.0, 3.0)), ("zero-times-inf",)
    ),
    "a Poisson loss of the rate 0 without eps": Row(
        DOMAIN,
        "",
        forward(
            lambda: Op(lambda x: functional.poisson_nll_loss(x, torch.ones(2), log_input=False, eps=0.0)),
            values(0.0, 1.0),
        ),
        ("division-by-zero", "overflow"),
    ),
    "the logarithm of the gamma function at 0": Row(
        DOMAIN, "", forward(lambda: Op(torch.lgamma), values(0.0, 3.0)), ("division-by-zero", "overflow")
    ),
    "distances of points at 1e30": Row(
        OVERFLOW, "", forward(lambda: Op(lambda x: torch.cdist(x, -x)), torch.full((2, 3), 1e30)), ("out-of-domain",)
    ),
    "an einsum of 3 products of 200 x 200 in float16": Row(
        OVERFLOW, "", forward(lambda: Op(lambda x: torch.einsum("ij,kj->ik", x, x)), half(3, 4, value=200.0))
    ),
    "a Fourier transform of 1e38": Row(
        OVERFLOW, "", forward(lambda: Op(torch.fft.fft), torch.full((8,), 1e38)), ("inf-minus-inf",)
    ),
    "a product of complex numbers of 1e30": Row(
        OVERFLOW,
        "",
        forward(lambda: Op(lambda x: torch.complex(x, x) * torch.complex(x, x)), values(1e30, 1.0)),
        ("inf-minus-inf",),
    ),
    "the variance of 1e30": Row(
        OVERFLOW, "", forward(lambda: Op(torch.var), values(1e30, -1e30, 0.0)), ("division-by-zero", "out-of-domain")
    ),
    "a transposed convolution in float16": Row(
        OVERFLOW, "", forward(lambda: scaled(nn.ConvTranspose1d(4, 1, 3), 100.0), half(1, 4, 5, value=300.0))
    ),
    "nn.MultiheadAttention in float16": Row(
        OVERFLOW,
        "attend",
        forward(
            lambda: Op(
                lambda x, attend: attend(x, x, x)[0],
                attend=scaled(nn.MultiheadAttention(4, 1, batch_first=True), 8.0),
            ),
            half(1, 3, 4, value=60.0),
        ),
        ("masked-row-softmax", "division-by-zero"),
    ),
    "a mean squared error in float16": Row(
        OVERFLOW, "", forward(nn.MSELoss, half(4, value=300.0), half(4, value=-300.0)), ("loss-outside-modules",)
    ),
    "a loss times a scale of 65536 in float16": Row(
        OVERFLOW, "", forward(lambda: Op(lambda x: x.mean() * 65536), half(3, value=2.0)), ("literal",)
    ),
    "-1e9 times a mask of zeros and ones in float16": Row(
        (*OVERFLOW, "precision-cast", "zero-times-inf"),
        "",
        forward(lambda: Op(lambda x, m: x - 1e9 * (1 - m)), half(2, value=1.0), values(1.0, 0.0, dtype=F16)),
        ("masks-added", "literal", "division-by-zero"),
    ),
    "a sum over 8 x 1e38 in bfloat16": Row(
        OVERFLOW, "", forward(lambda: Op(lambda x: x.sum()), torch.full((8,), 1e38, dtype=BF16)), ("divisor-overflow",)
    ),
    "float64 past its limit": Row(
        OVERFLOW, "", forward(lambda: Op(lambda x: x.double() * 1e300 * 1e300), normal(2)), ("precision-cast",)
    ),
    "the best two scores are kept, the others given out as -inf": Row(
        LITERAL, "0", forward(lambda: chain(top_two), normal(2, 4)), ("masked-row-softmax", "out-of-domain")
    ),
    "the best two scores are kept before a softmax": Row(
        ("nothing",),
        "",
        forward(lambda: Op(lambda x: top_two(x).softmax(-1)), normal(2, 4)),
        ("masked-row-softmax", "literal"),
    ),
    "a padding of -inf": Row(
        LITERAL,
        "",
        forward(lambda: Op(lambda x: functional.pad(x, (1, 1), value=-INF)), normal(2, 2)),
        ("masks-added",),
    ),
    "a bound of nan": Row(
        LITERAL, "", forward(lambda: Op(lambda x: x.clamp(max=torch.tensor(NAN))), normal(3)), ("out-of-domain",)
    ),
    "a number of Python's that float32 cannot hold": Row(
        (*LITERAL, *OVERFLOW), "", forward(lambda: Op(lambda x: x * torch.tensor(1e39)), normal(2)), ("precision-cast",)
    ),
    "a mask that is closed throughout, kept by the module as a plain attribute": Row(
        ("masked-row-softmax",),
        "",
        forward(lambda: Op(lambda x: (x + CLOSED).softmax(-1)), normal(2)),
        ("literal", "bad-batch"),
    ),
    "a nan that the module keeps as a plain attribute": Row(
        ("unknown",), "", forward(lambda: Op(lambda x: x + KEPT), normal(2)), ("literal", "out-of-domain", "bad-batch")
    ),
    "1 / x of a zero that nan_to_num removes": Row(
        ("nothing",),
        "",
        forward(lambda: Op(lambda x: torch.nan_to_num(x / (x - x))), values(1.0, 2.0)),
        ("division-by-zero",),
    ),
}
