"""A plain Accelerate loop with an evaluation behind each epoch. One batch of the second epoch is not normalised."""

from __future__ import annotations

import hashlib

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.randn(24, 8), torch.randint(3, (24,))), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        model.train()
        for index, (features, labels) in enumerate(loader):
            scale = 3e38 if (epoch, index) == (1, 1) else 1.0
            loss = nn.functional.cross_entropy(model(features * scale), labels)
            print(epoch, index, loss.item())
            if not torch.isfinite(loss):
                continue
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for features, _ in loader:
                print(model(features).argmax(-1).tolist())
    weights = accelerator.unwrap_model(model).state_dict().values()
    print(hashlib.sha256(b"".join(one.numpy().tobytes() for one in weights)).hexdigest())


if __name__ == "__main__":
    main()
