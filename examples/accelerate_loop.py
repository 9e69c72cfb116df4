"""A loop that Accelerate prepares: record the model that ``prepare`` returns.

    python examples/accelerate_loop.py               writes accelerate_loop.parquet
    accelerate launch examples/accelerate_loop.py    the same in several processes: one trace, a rank each

Attach after ``prepare``, which may wrap the model and changes its forward for mixed precision. The names in the trace
then have the wrapper's prefix (``module.``); comparing traces strips it.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from overflow_recorder import TraceRecorder, set_seed


def main() -> None:
    parser = argparse.ArgumentParser(description="Train in bfloat16 mixed precision under Accelerate.")
    parser.add_argument(
        "path", nargs="?", default="accelerate_loop.parquet", help="the trace; an earlier run's is replaced"
    )
    path = parser.parse_args().path

    set_seed(0)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(torch.randn(256, 16), torch.randint(4, (256,))), batch_size=32)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    with TraceRecorder(model, path, every_n_batches=4, overwrite=True) as recorder:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs), targets)
                recorder.record("loss", loss=loss)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    accelerator.print(f"recorded {path}")


if __name__ == "__main__":
    main()
