"""What was given or written: batches, masks, literals, memory, buffers, the loss; and what is absorbed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn import functional

from tests.integration.failures.row import (
    F16,
    INF,
    NAN,
    Op,
    Row,
    causal,
    chain,
    evaluation,
    forward,
    lowest,
    named,
    normal,
    row_masked,
    values,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.failures.row import Record

MASKED: Final = ("masked-row-softmax",)
LITERAL: Final = ("literal",)
UNWRITTEN: Final = ("unwritten-memory",)
BATCH: Final = ("bad-batch",)
BUFFER: Final = ("bad-buffer",)
LOSS: Final = ("loss-outside-modules",)
DOMAIN: Final = ("out-of-domain",)
ABSORBED: Final = ("absorbed",)
NAN_INPUT: Final = values([1.0, NAN], [2.0, 3.0])


def softmax_of_sum(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (scores + mask).softmax(-1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.soft, self.out = nn.Linear(8, 24), Op(softmax_of_sum), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(self.soft(q @ k.transpose(-1, -2), mask) @ v)


def encoder(dtype: torch.dtype = torch.float32) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(dtype)


def trained(model: Callable[[], nn.Module], *batches: tuple[Any, ...]) -> Callable[[Record], None]:
    """A training with AdamW on the square of what the model returns."""

    def script(record: Record) -> None:
        made = model()
        optimizer = torch.optim.AdamW(made.parameters())
        with record(made):
            for batch in batches:
                optimizer.zero_grad()
                made(*batch).square().mean().backward()
                optimizer.step()

    return script


def with_keywords(record: Record) -> None:
    model = Op(lambda x, head: head(x), head=nn.Linear(2, 2))
    with record(model):
        model(x=NAN_INPUT.clone())


@contextlib.contextmanager
def memory_is_nan() -> Iterator[None]:
    """Memory that nobody wrote is nan, as torch does it in its deterministic mode."""
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


def unwritten(model: Callable[[], nn.Module], *inputs: torch.Tensor) -> Callable[[Record], None]:
    script = forward(model, *inputs)

    def inside(record: Record) -> None:
        with memory_is_nan():
            script(record)

    return inside


def loss_of(make: Callable[[Any], torch.Tensor], dtype: torch.dtype = torch.float32) -> Callable[[Record], None]:
    """Two batches of which the second's loss, computed by the loop, is not finite."""

    def script(record: Record) -> None:
        model = nn.Linear(3, 3).to(dtype)
        with record(model) as recorder:
            recorder.record("loss", loss=model(normal(2, 3, dtype=dtype)).sum())
            recorder.record("loss", loss=make(model(normal(2, 3, dtype=dtype))))

    return script


class Autoencoder(nn.Module):
    """The deviation of a VAE overflows; the decoder takes it in and gives finite values out."""

    def __init__(self) -> None:
        super().__init__()
        self.deviation, self.decode = Op(torch.exp), Op(lambda z: torch.sigmoid(-z))

    def forward(self, log_variance: torch.Tensor) -> Any:
        return self.decode(self.deviation(log_variance))


def variational(record: Record) -> None:
    model = Autoencoder()
    with record(model) as recorder:
        for largest in (1.0, 100.0):
            log_variance = values(0.5, largest)
            reconstruction = model(log_variance)
            recorder.record("loss", loss=reconstruction.sum() + (log_variance.exp() - log_variance).sum())


class Gate(nn.Module):
    """An exponent overflows and is divided by; the weight's gradient is then inf x 0."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.exponent, self.gate = nn.Linear(1, 1), Op(torch.exp), Op(lambda x: 1 / (1 + x))
        nn.init.constant_(self.scale.weight, 1.0)

    def forward(self, x: torch.Tensor) -> Any:
        return self.gate(self.exponent(self.scale(x)))


def gated(record: Record) -> None:
    model = Gate()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record(model):
        for x in (1.0, 200.0, 1.0):
            model(values([x])).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def value_before(record: Record) -> None:
    model = nn.Linear(2, 2)
    with record(model) as recorder:
        recorder.record("batch", pixels=NAN_INPUT.clone())
        model(torch.nan_to_num(NAN_INPUT))


def recorded_mask(mask: torch.Tensor) -> Callable[[Record], None]:
    """The loop records the mask before the model takes it in."""

    def script(record: Record) -> None:
        model = Op(softmax_of_sum)
        with record(model, roles=("output",)) as recorder:
            recorder.record("batch", mask=mask)
            model(normal(4, 4), mask)

    return script


def loss_after_nan_output(record: Record) -> None:
    model = chain(nn.Linear(2, 2), torch.sqrt)
    with record(model) as recorder:
        recorder.record("loss", loss=model(values([3.0, 4.0], [-2.0, 1.0])).sum())


def buffered(value: float, where: str, dtype: torch.dtype = torch.float32) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        norm: Any = nn.BatchNorm1d(4)
        getattr(norm, where)[1] = value
        return chain(norm, nn.Linear(4, 2)).to(dtype)

    return model


def spoilt_statistics(record: Record) -> None:
    model = chain(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).half()
    with record(model):
        for size in (1.0, 6000.0, 1.0):
            model(normal(16, 4, scale=size, dtype=F16))


def registered(value: float) -> nn.Module:
    model: Any = Op(lambda x: x + model.scale)
    model.register_buffer("scale", values(value, 1.0))
    return chain(model)


def masked_loss(record: Record) -> None:
    model = Op(lambda x, y, head: torch.nan_to_num((head(x) - y).square(), nan=0.0).mean(), head=nn.Linear(2, 2))
    with record(model):
        for _ in range(2):
            model(normal(3, 2), values([NAN, 1.0], [0.5, NAN], [1.0, 2.0])).backward()


ROWS: Final[dict[str, Row]] = {
    # a softmax over a row that is masked whole
    "a full row of the mask that the model was given": Row(
        (*MASKED, "bad-batch"),
        "",
        forward(lambda: Op(softmax_of_sum), normal(4, 4), row_masked(4)),
        ("zero-times-inf", "absorbed"),
    ),
    "a full row of scores, in the softmax alone": Row(
        (*MASKED, "bad-batch"), "", forward(lambda: nn.Softmax(-1), torch.full((2, 3), -INF)), ("absorbed",)
    ),
    "a full row that masked_fill made, under another name": Row(
        MASKED,
        "1",
        forward(
            lambda: chain(
                nn.Identity(), named("Sorted", lambda x: x.masked_fill(torch.arange(3)[:, None] > 1, -INF).softmax(-1))
            ),
            normal(3, 5),
        ),
        ("literal", "out-of-domain"),
    ),
    "a full column, by a softmax over the first dimension": Row(
        MASKED,
        "",
        forward(lambda: Op(lambda x: x.masked_fill(torch.arange(3) > 1, -INF).softmax(0)), normal(4, 3)),
        ("literal",),
    ),
    "a log_softmax over banned classes alone, in float16": Row(
        MASKED,
        "",
        forward(
            lambda: Op(lambda x: (x * 1).masked_fill(torch.ones(3, dtype=torch.bool), -INF).log_softmax(-1)),
            normal(2, 3, dtype=F16),
        ),
        ("literal", "out-of-domain", "overflow"),
    ),
    "a padded query in nn.MultiheadAttention": Row(
        MASKED,
        "attend",
        forward(
            lambda: Op(
                lambda x, pad, attend: attend(x, x, x, key_padding_mask=pad)[0],
                attend=nn.MultiheadAttention(4, 2, batch_first=True),
            ),
            normal(2, 3, 4),
            torch.tensor([[True, True, True], [False, False, True]]),
        ),
        ("overflow", "out-of-domain"),
    ),
    "a mask with a full row from the second batch on": Row(
        MASKED,
        "soft",
        trained(Attention, (normal(2, 4, 8), causal(4)), (normal(2, 4, 8), row_masked(4))),
        ("absorbed", "bad-batch"),
        batch=1,
    ),
    "a full row in an evaluation": Row(
        MASKED,
        "",
        evaluation(lambda: Op(softmax_of_sum), normal(2, 3, 3), row_masked(3)),
        ("absorbed", "bad-batch", "zero-times-inf"),
    ),
    # infinities that the program writes
    "masked_fill with -inf, given out": Row(
        LITERAL,
        "1",
        forward(lambda: chain(nn.Identity(), lambda x: x.masked_fill(x > 0, -INF)), normal(3, 4)),
        ("masked-row-softmax", "masks-added", "out-of-domain"),
    ),
    "where with inf, between two modules": Row(
        LITERAL,
        "",
        forward(lambda: Op(lambda x, head: head(torch.where(x > 0, x, INF)), head=nn.Linear(4, 2)), normal(3, 4)),
        ("bad-batch", "overflow"),
    ),
    "a tensor of nan": Row(
        LITERAL,
        "",
        forward(lambda: Op(lambda x: x + torch.tensor(NAN)), normal(3)),
        ("out-of-domain", "division-by-zero"),
    ),
    "full of -inf": Row(
        LITERAL,
        "",
        forward(lambda: Op(lambda x: torch.full((2, 3), -INF)), normal(3)),
        ("masked-row-softmax", "masks-added"),
    ),
    "nan written by an index": Row(
        LITERAL,
        "0",
        forward(lambda: chain(lambda x: x.index_fill(0, torch.tensor([1]), NAN)), normal(3, 2)),
        ("division-by-zero",),
    ),
    "-inf written beside float16 finfo.min masks": Row(
        LITERAL,
        "",
        forward(lambda: Op(lambda a, b: torch.minimum(a, b).masked_fill(a < 0, -INF)), lowest(2, 3), lowest(1, 3)),
        ("masks-added", "masked-row-softmax"),
    ),
    "fill_ with inf into memory that was empty": Row(
        LITERAL,
        "",
        forward(lambda: Op(lambda x: x + torch.empty(3).fill_(INF)), normal(3)),
        ("unwritten-memory", "overflow"),
    ),
    "a float32 input of 1e5, and inf written in float16": Row(
        LITERAL,
        "",
        forward(lambda: Op(lambda x: (x / 1e5).half().clamp(min=INF)), values(1e5, 1.0)),
        ("precision-cast", "overflow"),
    ),
    "an assignment of nan to a slice": Row(
        LITERAL, "0", forward(lambda: chain(assign_nan), normal(3, 4)), ("division-by-zero", "out-of-domain")
    ),
    "-inf written over figures near float16's limit": Row(
        LITERAL,
        "0",
        forward(lambda: chain(lambda x: x.masked_fill(x > 100, -INF)), values(3e4, 6e4, 1.0, dtype=F16)),
        ("overflow", "precision-cast", "masks-added"),
    ),
    # memory that nobody wrote
    "torch.empty, read": Row(
        UNWRITTEN, "", unwritten(lambda: Op(lambda x: x + torch.empty(3)), normal(3)), ("out-of-domain", "overflow")
    ),
    "new_empty, of which one half is written": Row(
        UNWRITTEN,
        "1",
        unwritten(lambda: chain(nn.Identity(), half_written), normal(4, 2)),
        ("literal", "division-by-zero"),
    ),
    "empty_like, before the next module": Row(
        UNWRITTEN,
        "",
        unwritten(lambda: Op(lambda x, head: head(torch.empty_like(x)), head=nn.Linear(2, 2)), normal(3, 2)),
        ("bad-batch", "bad-parameter-at-start"),
    ),
    # the batch
    "a nan in the model's input": Row(
        BATCH, "0", forward(lambda: chain(nn.Linear(2, 2)), NAN_INPUT), ("absorbed", "unwritten-memory"), "certain"
    ),
    "a nan in the only module's input": Row(
        BATCH, "", forward(lambda: nn.Linear(2, 2), NAN_INPUT), ("out-of-domain",), "certain"
    ),
    "an inf in float16 pixels": Row(
        BATCH,
        "0",
        forward(
            lambda: chain(nn.Conv2d(1, 1, 1).half()),
            normal(1, 1, 2, 2, dtype=F16).index_fill(3, torch.tensor([1]), INF),
        ),
        ("overflow", "precision-cast"),
        "certain",
    ),
    "a nan in a keyword": Row(BATCH, "head", with_keywords, ("unwritten-memory", "literal"), "certain"),
    "a nan in a dictionary, beside zeros": Row(
        BATCH,
        "head",
        forward(
            lambda: Op(lambda batch, head: head(batch["x"]), head=nn.Linear(2, 2)),
            {"x": NAN_INPUT, "mask": torch.zeros(2)},
        ),
        ("division-by-zero", "zero-times-inf"),
        "certain",
    ),
    "nan targets of a loss inside the model": Row(
        BATCH,
        "loss",
        forward(
            lambda: Op(lambda x, y, head, loss: loss(head(x), y), head=nn.Linear(2, 2), loss=nn.MSELoss()),
            normal(2, 2),
            NAN_INPUT,
        ),
        ("loss-outside-modules", "overflow"),
        "certain",
    ),
    "a recorded batch with a nan": Row((*BATCH, "absorbed"), "batch", value_before, ("loss-outside-modules",)),
    "a nan in the second batch, in an evaluation": Row(
        BATCH,
        "0",
        evaluation(lambda: chain(nn.Linear(2, 2), nn.ReLU()), NAN_INPUT),
        ("bad-parameter-at-start",),
        "certain",
    ),
    "a nan that the model multiplies by a mask of zeros": Row(
        BATCH,
        "",
        forward(lambda: Op(lambda x, m: (x * m).sum()), NAN_INPUT, torch.zeros(2, 2)),
        ("zero-times-inf", "division-by-zero"),
        "certain",
    ),
    "a nan that a batch norm takes in, and its running statistics with it": Row(
        BATCH, "0", forward(lambda: chain(nn.BatchNorm1d(2), nn.Linear(2, 1)), NAN_INPUT), ("bad-buffer",), "certain"
    ),
    "a temperature of inf that the model was given, and outputs of 0": Row(
        (*BATCH, "divisor-overflow"),
        "",
        forward(lambda: Op(torch.div), normal(3, dtype=F16), torch.tensor(INF, dtype=F16)),
        ("overflow", "absorbed"),
        "certain",
    ),
    # buffers
    "a running variance of nan": Row(
        BUFFER,
        "0",
        forward(buffered(NAN, "running_var"), normal(8, 4)),
        ("absorbed", "bad-parameter-at-start"),
        "certain",
    ),
    "a running mean of inf, in an evaluation": Row(
        BUFFER,
        "0",
        evaluation(buffered(INF, "running_mean"), normal(8, 4)),
        ("overflow", "bad-batch", "inf-minus-inf"),
        "certain",
    ),
    "a float16 running variance after a batch that it cannot hold": Row(
        (*BUFFER, "overflow"), "1", spoilt_statistics, ("absorbed", "bad-batch"), "certain", batch=1
    ),
    "a buffer of the user's own that is nan": Row(
        BUFFER,
        "0",
        forward(lambda: registered(NAN), normal(2, 2)),
        ("literal", "bad-batch", "bad-parameter-at-start"),
        "certain",
    ),
    "a scale of inf in a buffer": Row(
        BUFFER, "0", forward(lambda: registered(INF), normal(2, 2)), ("overflow", "literal", "absorbed"), "certain"
    ),
    # the loss
    "a cross entropy whose labels are all ignored": Row(
        LOSS,
        "loss",
        loss_of(lambda y: functional.cross_entropy(y, torch.full((2,), -100))),
        ("division-by-zero", "bad-batch"),
        batch=1,
    ),
    "a masked mean over no tokens, in the loop": Row(
        LOSS, "loss", loss_of(lambda y: (y * 0).sum() / (y * 0).sum()), ("division-by-zero", "absorbed"), batch=1
    ),
    "a float16 loss that overflows in the loop": Row(
        LOSS, "loss", loss_of(lambda y: (y * 300).square().sum(), F16), ("overflow", "nonfinite-gradient"), batch=1
    ),
    "a loss of nan from nan targets in the loop": Row(
        LOSS, "loss", loss_of(lambda y: (y - NAN).square().mean()), ("bad-batch", "absorbed"), batch=1
    ),
    "a loss after an output of the model that is nan": Row(
        DOMAIN, "1", loss_after_nan_output, ("loss-outside-modules",)
    ),
    "the exponent of a VAE overflows, its decoder takes the inf in, and the loss is inf": Row(
        ("overflow",), "deviation", variational, ("absorbed", "loss-outside-modules"), batch=1
    ),
    "the exponent of a gate overflows, the gate is finite, and the weights are nan at the next step": Row(
        ("overflow",), "exponent", gated, ("absorbed", "parameter-went-bad", "nonfinite-gradient"), batch=1
    ),
    # absorbed
    "the exponent of a sigmoid by hand overflows, and 1 / (1 + inf) is 0": Row(
        (*ABSORBED, "overflow"),
        "0",
        forward(lambda: chain(torch.exp, lambda x: 1 / (1 + x)), values(200.0, 1.0)),
        ("bad-batch", "divisor-overflow"),
    ),
    "a healthy encoder under a causal mask": Row(
        ABSORBED,
        "layers.0.self_attn",
        forward(encoder, normal(2, 6, 8), causal(6)),
        ("bad-batch", "masked-row-softmax"),
        "likely",
    ),
    "a healthy encoder with padding, in an evaluation": Row(
        ABSORBED,
        "encoder.layers.0.self_attn",
        forward(
            lambda: Op(lambda x, pad, encoder: encoder(x, src_key_padding_mask=pad), encoder=encoder()),
            normal(2, 6, 8),
            torch.tensor([[False] * 4 + [True] * 2] * 2),
        ),
        ("bad-batch", "literal"),
    ),
    "a nan in padding that nan_to_num removes": Row(
        ABSORBED,
        "",
        forward(lambda: named("Pool", lambda x: torch.nan_to_num(x).mean()), values(1.0, NAN)),
        ("bad-batch", "overflow"),
    ),
    "nan targets that the model masks": Row(
        ABSORBED, "", masked_loss, ("bad-batch", "loss-outside-modules", "nonfinite-gradient")
    ),
    "scores of -inf that a softmax takes in": Row(
        (*ABSORBED, "literal"),
        "0",
        forward(lambda: chain(lambda x: x.masked_fill(torch.arange(4) > 2, -INF), nn.Softmax(-1)), normal(3, 4)),
        ("masked-row-softmax", "zero-times-inf", "bad-batch"),
    ),
    "an attention under a causal mask, trained for three batches": Row(
        ABSORBED,
        "soft",
        trained(Attention, *([(normal(2, 4, 8), causal(4))] * 3)),
        ("masked-row-softmax", "bad-batch", "literal"),
    ),
    "a cap of inf": Row(
        ABSORBED,
        "",
        forward(lambda: Op(torch.minimum), normal(3), torch.full((3,), INF)),
        ("bad-batch", "overflow", "divisor-overflow"),
    ),
    "a mask that the loop records, and that the model absorbs": Row(
        ABSORBED, "batch", recorded_mask(causal(4)), ("bad-batch", "loss-outside-modules", "masked-row-softmax")
    ),
    "a mask that the loop records, with a full row, and nan after it": Row(
        MASKED, "batch", recorded_mask(row_masked(4)), ("bad-batch", "absorbed")
    ),
    # nothing to find
    "boolean masks with a full row in scaled_dot_product_attention, which gives 0 there": Row(
        ("nothing",),
        "",
        forward(
            lambda: Op(lambda x, m: functional.scaled_dot_product_attention(x, x, x, m)),
            normal(1, 3, 4),
            torch.tensor([[True, True, True], [False, False, False], [True, False, True]]),
        ),
        ("masked-row-softmax",),
    ),
    "finfo.min masks, once": Row(
        ("nothing",),
        "",
        forward(lambda: Op(softmax_of_sum), normal(3, 3, dtype=F16), lowest(1, 3)),
        ("masks-added", "overflow"),
    ),
    "logits of zeros through log1p, exp and a root": Row(
        ("nothing",),
        "",
        forward(lambda: chain(torch.log1p, torch.exp, torch.sqrt), torch.zeros(2, 2)),
        ("out-of-domain", "division-by-zero", "underflow"),
    ),
}


def assign_nan(x: torch.Tensor) -> torch.Tensor:
    result = x.cumsum(-1)
    result[-1, 1:] = NAN
    return result


def half_written(x: torch.Tensor) -> torch.Tensor:
    result = x.new_empty(x.shape)
    result[:2] = 0
    return result
