# Two runs whose one LayerNorm differs in eps: python wrong_eps.py 1e-5 | 1e-3.
import sys

import torch
from torch import nn

eps = float(sys.argv[1])
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64, eps=eps), nn.Linear(64, 4)
)
optimizer = torch.optim.Adam(model.parameters())
for _step in range(10):
    x = torch.randn(32, 16)
    loss = nn.functional.cross_entropy(model(x), torch.randint(0, 4, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", loss.item())
