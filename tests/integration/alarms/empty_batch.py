# The loss of an empty selection is a mean over nothing.
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    x, y = torch.randn(32, 16), torch.randint(0, 4, (32,))
    keep = y != (9 if step != 13 else y)
    logits = model(x)
    loss = nn.functional.cross_entropy(logits[keep], y[keep])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", loss.item())
