"""The models and batches that the training-step benchmark runs: real shapes, random or real weights."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclass(frozen=True)
class Workload:
    """A model with a loss of one fixed batch."""

    model: nn.Module
    loss: Callable[[], torch.Tensor]


def mt5_small_shape() -> Workload:
    """mt5-small's 383 modules with the vocabulary cut so that 60M parameters remain; batch 4, 64 and 32 tokens."""
    from transformers import MT5Config, MT5ForConditionalGeneration

    config = MT5Config(
        vocab_size=15_500, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6, decoder_start_token_id=0
    )
    model = MT5ForConditionalGeneration(config)
    ids, labels = torch.randint(1, 15_000, (4, 64)), torch.randint(1, 15_000, (4, 32))
    return Workload(model, lambda: model(input_ids=ids, labels=labels).loss)


def minilm_real_weights() -> Workload:
    """The real weights of all-MiniLM-L6-v2; batch 16 of 64 tokens."""
    from benchmarks.minilm import load_minilm

    model, vocabulary = load_minilm()
    ids = torch.randint(1, vocabulary, (16, 64))
    mask = torch.ones_like(ids)
    return Workload(model, lambda: model(input_ids=ids, attention_mask=mask).last_hidden_state.float().square().mean())


def gpt2_shape() -> Workload:
    """GPT-2's 12 layers of width 768; batch 2 of 64 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8_000))
    ids = torch.randint(1, 8_000, (2, 64))
    return Workload(model, lambda: model(input_ids=ids, labels=ids).loss)


def resnet50_shape() -> Workload:
    """ResNet-50; batch 4 of 96 x 96 pixels."""
    from transformers import ResNetConfig, ResNetForImageClassification

    model = ResNetForImageClassification(ResNetConfig(num_labels=100))
    pixels = torch.randn(4, 3, 96, 96)
    return Workload(
        model, lambda: model(pixel_values=pixels.to(next(model.parameters()).dtype)).logits.float().square().mean()
    )


def worst_case() -> Workload:
    """Two hundred small layers and a batch of one: next to no work a module."""
    model = nn.Sequential(*[layer for _ in range(100) for layer in (nn.Linear(16, 16), nn.Tanh())])
    x = torch.randn(1, 16)
    return Workload(model, lambda: model(x.to(next(model.parameters()).dtype)).float().square().mean())


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mt5-small": mt5_small_shape,
    "minilm": minilm_real_weights,
    "gpt2": gpt2_shape,
    "resnet50": resnet50_shape,
    "worst-case": worst_case,
}
