"""Architectures of every family that transformers has, tiny and with random weights, recorded whole.

``python -m tests.verification.zoo`` does the same for all that can be made from their configuration alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from transformers.utils import logging

from tests.verification.zoo import record_architecture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KINDS = {
    "albert": "an encoder whose layers are one layer, called again and again",
    "bert": "an encoder",
    "deberta": "an encoder with relative positions",
    "modernbert": "an encoder with rotary positions",
    "mpnet": "an encoder with a table of relative positions that all layers share",
    "xlnet": "permuted language modelling",
    "flaubert": "an activation that models share",
    "gpt2": "a decoder",
    "llama": "a decoder with grouped queries",
    "gemma3_text": "a decoder with local and global attention",
    "llama4_text": "complex rotary positions",
    "mixtral": "a mixture of experts",
    "qwen3_moe": "a mixture of many small experts",
    "gpt_oss": "a mixture of experts with attention sinks",
    "mamba": "a state space",
    "rwkv": "a recurrence",
    "nemotron_h": "state spaces, attention and plain layers in turn",
    "t5": "an encoder and a decoder",
    "bart": "an encoder and a decoder with learnt positions",
    "switch_transformers": "an encoder and a decoder, both with experts",
    "vit": "images",
    "mobilenet_v1": "images, by convolutions",
    "whisper": "audio features",
    "wav2vec2": "a waveform",
    "clip": "images and texts",
    "vilt": "images and texts in one encoder",
    "patchtst": "time series",
}


@pytest.fixture(autouse=True)
def _quietly_on_one_thread() -> Iterator[None]:
    """Tiny operations gain nothing by threads."""
    threads, verbosity = torch.get_num_threads(), logging.get_verbosity()
    torch.set_num_threads(1)
    logging.set_verbosity(logging.CRITICAL)
    yield
    torch.set_num_threads(threads)
    logging.set_verbosity(verbosity)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_is_what_plain_torch_finds_and_upstreams_lines_stand_in_ours(kind: str, tmp_path: Path) -> None:
    found = record_architecture(kind, tmp_path)  # it compares
    assert found.rows > found.frames > 10
    assert found.upstream_lines is not None
    assert found.upstream_lines > found.frames
