"""Small trainings of several kinds in several settings, and all the bits that come of them."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import T5ForConditionalGeneration

__all__ = ["MODELS", "SETTINGS", "Setting", "make", "train"]


class _Checkpointing(nn.Module):
    """Its parts may be forgotten after the forward and run again in the backward."""

    use_reentrant: bool | None = None
    """Which kind of checkpointing; None for none."""

    def run(self, part: nn.Module, *args: torch.Tensor) -> Any:
        if self.use_reentrant is None:
            return part(*args)
        return checkpoint(part, *args, use_reentrant=self.use_reentrant)


class Mlp(_Checkpointing):
    """Dropout in every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.3)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.run(layer, x)
        return x.float().square().mean()

    def inputs(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(4, 8, dtype=dtype, requires_grad=True)}


class Cnn(_Checkpointing):
    """Convolution, BatchNorm, an in-place activation, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 1)
        self.features = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.1)
        )
        self.head = nn.Linear(36, 3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.run(self.features, self.stem(x)))
        return nn.functional.cross_entropy(logits.float(), labels), logits

    def inputs(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(4, 1, 8, 8, dtype=dtype), "labels": torch.randint(3, (4,))}


class Lstm(_Checkpointing):
    """Recurrence over an embedding whose weights the head shares."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.lstm = nn.LSTM(8, 8, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> dict[str, Any]:
        states, hidden = self.run(self.lstm, self.embed(ids))
        logits = self.head(states)
        loss = nn.functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())
        return {"loss": loss, "logits": logits, "hidden": hidden}

    def inputs(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {"ids": torch.randint(16, (2, 6))}


class Mixture(_Checkpointing):
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
                update = self.run(expert, x[rows]) * chosen.values[rows, rank, None]
                output = output.index_add(0, rows, update.to(output.dtype))
        return (output - x).float().square().mean() + weights.float().mean(0).square().sum(), [weights, output]

    def inputs(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return {"x": torch.randn(6, 8, dtype=dtype, requires_grad=True)}


def t5() -> T5ForConditionalGeneration:
    """Two layers of T5 with a gated activation, cross attention and tied embeddings."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(
        T5Config(vocab_size=16, feed_forward_proj="gated-gelu", decoder_start_token_id=0, **sizes)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": Mlp, "cnn": Cnn, "lstm": Lstm, "mixture": Mixture, "t5": t5}


class Setting(NamedTuple):
    """How a model is trained."""

    dtype: torch.dtype = torch.float32
    autocast: bool = False
    """In bfloat16; a ``GradScaler`` scales, as it would in earnest."""
    accumulate: int = 1
    """Micro-batches a step."""
    use_reentrant: bool | None = None
    """The kind of activation checkpointing; None for none."""


SETTINGS = {
    "float32": Setting(),
    "bfloat16": Setting(dtype=torch.bfloat16),
    "float16": Setting(dtype=torch.float16),
    "autocast": Setting(autocast=True),
    "checkpointing": Setting(use_reentrant=False),
    "reentrant checkpointing": Setting(use_reentrant=True),
    "accumulation": Setting(accumulate=3),
}


def make(name: str, setting: Setting) -> nn.Module:
    """Make a model, the same each time, and put random states as they are at the start of a run."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the state that a recorder might touch
    torch.manual_seed(0)
    model: Any = MODELS[name]()
    if setting.use_reentrant is not None:
        if isinstance(model, _Checkpointing):
            model.use_reentrant = setting.use_reentrant
        else:
            model.gradient_checkpointing_enable({"use_reentrant": setting.use_reentrant})
    return model.to(setting.dtype).train()  # type: ignore[no-any-return]


def train(model: nn.Module, setting: Setting, steps: int, called: nn.Module | None = None) -> dict[str, torch.Tensor]:
    """Train, and return all that came of it by name, as bytes: nan is equal to itself, and 0 is not -0.

    Args:
        model: What ``make`` has made.
        setting: The same.
        steps: Of the optimizer.
        called: A wrapper to call in the model's place.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=5, enabled=setting.autocast)
    losses = []
    for micro_batch in range(steps * setting.accumulate):
        with _autocast(model) if setting.autocast else contextlib.nullcontext():
            inputs = _inputs(model, setting.dtype)
            loss = _loss((called or model)(**inputs)) / setting.accumulate
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        losses.append(loss.detach())
        if (micro_batch + 1) % setting.accumulate == 0:
            scaler.step(optimizer)
            scaler.update()
            if micro_batch + 1 < steps * setting.accumulate:  # the last gradients are compared
                optimizer.zero_grad()
    return _bits(model, losses, optimizer, scaler.get_scale())


@contextlib.contextmanager
def _autocast(model: nn.Module) -> Iterator[None]:
    """Autocast to bfloat16; without oneDNN, which has no such LSTM, where there is one."""
    torch._C._set_mkldnn_enabled(not isinstance(model, Lstm))
    try:
        with torch.autocast("cpu", torch.bfloat16):
            yield
    finally:
        torch._C._set_mkldnn_enabled(True)  # noqa: FBT003  torch names no parameter


def _inputs(model: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    if hasattr(model, "inputs"):
        return model.inputs(dtype)  # type: ignore[no-any-return]
    ids = torch.randint(1, 16, (2, 6))
    return {"input_ids": ids, "attention_mask": (torch.rand(2, 6) < 0.8).long(), "labels": ids}


def _loss(output: Any) -> torch.Tensor:
    if isinstance(output, torch.Tensor):
        return output
    return output["loss"] if hasattr(output, "keys") else output[0]  # type: ignore[no-any-return]


def _bits(
    model: nn.Module, losses: list[torch.Tensor], optimizer: torch.optim.Optimizer, scale: float
) -> dict[str, torch.Tensor]:
    named = {f"loss {number}": loss for number, loss in enumerate(losses)}
    named |= {f"gradient of {name}": one.grad for name, one in model.named_parameters() if one.grad is not None}
    named |= model.state_dict()
    states = enumerate(optimizer.state.values())
    named |= {f"optimizer's {key} of parameter {number}": one for number, state in states for key, one in state.items()}
    named |= {"loss scale": torch.tensor(scale), "torch's random state": torch.get_rng_state()}
    named["numpy's random state"] = torch.from_numpy(np.random.get_state()[1].astype(np.int64))  # type: ignore[index]  # noqa: NPY002
    named["Python's random state"] = torch.tensor(random.getstate()[1][:-1])
    return {name: one.detach().contiguous().reshape(-1).view(torch.uint8) for name, one in named.items()}
