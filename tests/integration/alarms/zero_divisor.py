# One sample's divisor is zero.
import torch
from torch import nn


class Normalize(nn.Module):
    def forward(self, x, lengths):
        return x.sum(1) / lengths[:, None]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.pool, self.head = nn.Embedding(50, 32), Normalize(), nn.Linear(32, 2)

    def forward(self, ids, mask):
        x = self.embed(ids) * mask[..., None]
        return self.head(self.pool(x, mask.sum(1)))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    ids, mask = torch.randint(0, 50, (8, 10)), torch.ones(8, 10)
    mask[:, 7:] = 0
    if step == 12:
        mask[5] = 0
    loss = nn.functional.cross_entropy(model(ids, mask), ids[:, 0] % 2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", loss.item())
