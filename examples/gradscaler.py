"""Mixed precision with a gradient scaler and accumulated gradients: a skipped step raises no alarm.

    python examples/gradscaler.py                    writes gradscaler.parquet

The scaler starts so high that the first gradients are infinite. It skips that step and halves its scale, as it should.
All forward values are finite, so detection stays silent and the run exits with 0.

Four micro-batches make one optimizer step. By default the recorder counts each forward as a batch. Here the loop
assigns the batch number, so that "batch 3" means the same in the trace and in the training log.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from overflow_recorder import TraceRecorder

ACCUMULATED = 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with float16 autocast, GradScaler and accumulated gradients.")
    parser.add_argument("path", nargs="?", default="gradscaler.parquet", help="the trace; an earlier run's is replaced")
    path = parser.parse_args().path

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)

    with TraceRecorder(model, path, every_n_batches=2, overwrite=True) as recorder:
        for step in range(10):
            recorder.begin_batch(step)
            for _ in range(ACCUMULATED):
                inputs, targets = torch.randn(32, 16), torch.randint(4, (32,))
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = nn.functional.cross_entropy(model(inputs), targets) / ACCUMULATED
                recorder.record("loss", loss=loss)
                scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if scaler.get_scale() < before:
                print(f"step {step}: infinite gradients, skipped; the scale is now {scaler.get_scale():g}")
    print(f"recorded {path}")


if __name__ == "__main__":
    main()
