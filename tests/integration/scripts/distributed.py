"""Data parallel training on the CPU. The second process has a batch that is not normalised."""

from __future__ import annotations

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        features = torch.rand(2, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        scale = float("inf") if (rank, step) == (1, 2) else 1.0
        loss = model(features * scale).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
