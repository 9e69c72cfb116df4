"""Small trainings of several kinds, and all the bits that come of them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import T5ForConditionalGeneration

__all__ = ["MODELS", "bits_of", "train"]


class Mlp(nn.Module):
    """Dropout in every layer; layers may be checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.3)) for _ in range(3))
        self.use_reentrant: bool | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x) if self.use_reentrant is None else checkpoint(layer, x, use_reentrant=self.use_reentrant)
        return x.float().square().mean()

    def inputs(self, dtype: torch.dtype) -> tuple[Any, ...]:
        return (torch.randn(4, 8, dtype=dtype, requires_grad=True),)


class Cnn(nn.Module):
    """Convolution, BatchNorm, an in-place activation, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(36, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.features(x))
        return nn.functional.cross_entropy(logits.float(), labels), logits

    def inputs(self, dtype: torch.dtype) -> tuple[Any, ...]:
        return torch.randn(4, 1, 8, 8, dtype=dtype), torch.randint(3, (4,))


class Lstm(nn.Module):
    """Recurrence over an embedding whose weights the head shares."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> dict[str, Any]:
        states, hidden = self.lstm(self.embed(ids))
        logits = self.head(states)
        loss = nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
        return {"loss": loss, "logits": logits, "hidden": hidden}

    def inputs(self, dtype: torch.dtype) -> tuple[Any, ...]:
        return (torch.randint(16, (2, 6)),)


class Mixture(nn.Module):
    """A router, experts that run on the tokens routed to them, some of them in no batch, and a load-balancing loss."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        weights = self.router(x).softmax(-1)
        chosen = weights.topk(2, -1)
        output = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, rank = torch.where(chosen.indices == number)
            if len(rows):
                update = expert(x[rows]) * chosen.values[rows, rank, None]
                output = output.index_add(0, rows, update.to(output.dtype))
        return (output - x).float().square().mean() + weights.float().mean(0).square().sum(), [weights, output]

    def inputs(self, dtype: torch.dtype) -> tuple[Any, ...]:
        return (torch.randn(6, 8, dtype=dtype),)


def t5() -> T5ForConditionalGeneration:
    """Two layers of T5 with a gated activation, cross attention and tied embeddings."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=16, feed_forward_proj="gated-gelu", decoder_start_token_id=0, **sizes)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": Mlp, "cnn": Cnn, "lstm": Lstm, "mixture": Mixture, "t5": t5}


def train(
    model: nn.Module, *, steps: int, dtype: torch.dtype = torch.float32, autocast: bool = False, accumulate: int = 1
) -> list[torch.Tensor]:
    """Train and return every loss; the model holds the rest.

    Under autocast a ``GradScaler`` scales, as it would in earnest.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=5, enabled=autocast)
    losses = []
    for micro_batch in range(steps * accumulate):
        with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
            loss = _loss(_run(model, dtype)) / accumulate
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        losses.append(loss.detach())
        if (micro_batch + 1) % accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            if micro_batch + 1 < steps * accumulate:  # the last gradients are compared
                optimizer.zero_grad()
    state = [value for one in optimizer.state.values() for value in one.values()]
    return [*losses, *state, torch.tensor(scaler.get_scale()), torch.get_rng_state()]


def _run(model: Any, dtype: torch.dtype) -> Any:
    if hasattr(model, "inputs"):
        return model(*model.inputs(dtype))
    ids = torch.randint(1, 16, (2, 6))
    return model(input_ids=ids, attention_mask=(torch.rand(2, 6) < 0.8).long(), labels=ids)


def _loss(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    return output["loss"] if hasattr(output, "keys") else output[0]  # type: ignore[no-any-return]


def bits_of(model: nn.Module, results: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the bytes of results, weights, buffers and gradients: nan is equal to itself, and 0 is not -0."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for tensor in (*results, *model.state_dict().values(), *gradients):
        yield tensor.detach().contiguous().reshape(-1).view(torch.uint8)
