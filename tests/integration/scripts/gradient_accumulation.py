"""Gradient accumulation under autocast to float16. One micro-batch is too large for it and is left out."""

from __future__ import annotations

import argparse
import hashlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        features = torch.randn(16, generator=generator)
        scale = 60000.0 if index // 4 == 6 else 1.0
        return features * scale, features.sum().sign()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(16, 64)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(64, 1)

    def forward(self, features: torch.Tensor, *, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.dropout(torch.relu_(self.embed(features)))
        logits = self.head(hidden).squeeze(-1)
        return {"loss": nn.functional.mse_loss(logits.float(), labels), "logits": logits}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Net()
    nn.init.normal_(model.embed.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Samples(), batch_size=4, num_workers=args.workers)
    for index, (features, labels) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(features, labels=labels)["loss"]
        print(index, loss.item())
        if torch.isfinite(loss):
            (loss / args.accumulate).backward()
        if (index + 1) % args.accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


if __name__ == "__main__":
    main()
