# One fully masked row whose output is ignored but whose gradient is nan.
import torch
from torch import nn


class Attn(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / x.shape[-1] ** 0.5
        scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
        return scores.softmax(-1) @ self.v(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.a, self.head = nn.Embedding(50, 32), Attn(32), nn.Linear(32, 50)

    def forward(self, ids, mask):
        return self.head(self.a(self.embed(ids), mask))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(20):
    ids = torch.randint(1, 50, (8, 10))
    lengths = torch.randint(3, 11, (8,))
    if step == 9:
        lengths[6] = 0
    mask = torch.arange(10) < lengths[:, None]
    logits = model(ids, mask)
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
    loss = torch.where(mask, losses, torch.zeros(())).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", loss.item())
