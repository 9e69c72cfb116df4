"""A T5 in float16 whose Dropout pushes a large but finite output over float16's limit.

    python examples/t5_dropout_overflow.py           writes t5.parquet
    overflow-analyze t5.parquet                      shows what produced the first inf

The model has mt5-small's shape (383 modules; the vocabulary is cut to bytes) and random weights. The feed-forward
layer of encoder block 2 is scaled to magnitudes that were seen in a trained mt5-small: the output of its ``wo`` is
6.27e+04, 95.7% of what float16 can hold. Dropout(0.1) divides what it keeps by 0.9, and the quotient overflows.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from overflow_recorder import NonFiniteError, TraceRecorder

SEED = 0


def mt5_small() -> T5ForConditionalGeneration:
    torch.manual_seed(SEED)
    config = T5Config(
        vocab_size=384, d_model=512, d_kv=64, d_ff=1024, num_layers=8, num_heads=6,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).half().train()


@torch.no_grad()
def scale_feed_forward(model: T5ForConditionalGeneration, input_ids: torch.Tensor) -> None:
    """Scale the weights of encoder block 2's feed-forward so that its outputs have the magnitudes wanted."""
    feed_forward = model.encoder.block[2].layer[1].DenseReluDense
    for linear, wanted in ((feed_forward.wi_0, 37.0), (feed_forward.wi_1, 237.0), (feed_forward.wo, 6.27e4)):
        linear.weight *= wanted / output_peak(model.encoder, linear, input_ids)


def output_peak(encoder: nn.Module, linear: nn.Linear, input_ids: torch.Tensor) -> float:
    peaks: list[float] = []
    handle = linear.register_forward_hook(lambda *call: peaks.append(call[-1].abs().max().item()))
    torch.manual_seed(SEED)  # the same dropout masks as in the training below
    encoder(input_ids)
    handle.remove()
    return peaks[0]


def train(model: T5ForConditionalGeneration, input_ids: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(SEED)
    for _ in range(3):
        model(input_ids=input_ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the float16 training of a T5 that overflows in a Dropout.")
    parser.add_argument("path", nargs="?", default="t5.parquet", help="the trace; an earlier run's is replaced")
    path = parser.parse_args().path

    model = mt5_small()
    input_ids, labels = torch.randint(3, 384, (4, 64)), torch.randint(3, 384, (4, 32))
    scale_feed_forward(model, input_ids)
    try:
        with TraceRecorder(model, path, overwrite=True):
            train(model, input_ids, labels)
    except NonFiniteError as error:
        print(f"training stopped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
