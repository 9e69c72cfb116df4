"""The smallest use: an ordinary training loop, recorded.

    python examples/plain_loop.py                    writes plain_loop.parquet
    overflow-analyze top plain_loop.parquet          ranks modules by headroom

The run is clean: ``overflow-analyze plain_loop.parquet`` finds nothing and exits with 0.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from overflow_recorder import TraceRecorder


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small model for 20 batches and record every fifth one.")
    parser.add_argument("path", nargs="?", default="plain_loop.parquet", help="the trace; an earlier run's is replaced")
    path = parser.parse_args().path

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    with TraceRecorder(model, path, every_n_batches=5, overwrite=True) as recorder:
        for _ in range(20):
            inputs, targets = torch.randn(32, 16), torch.randint(4, (32,))
            loss = nn.functional.cross_entropy(model(inputs), targets)
            recorder.record("loss", loss=loss)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"recorded batches 0, 5, 10 and 15 in {path}")


if __name__ == "__main__":
    main()
