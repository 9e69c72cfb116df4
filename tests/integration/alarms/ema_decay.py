# A teacher whose decay is above 1.
import copy

import torch
from torch import nn


class Distill(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
        self.teacher = copy.deepcopy(self.student)
        self.teacher.requires_grad_(requires_grad=False)

    def forward(self, x):
        return self.student(x), self.teacher(x)


torch.manual_seed(0)
model = Distill()
optimizer = torch.optim.SGD(model.student.parameters(), lr=0.01)
for _step in range(120):
    x = torch.randn(8, 16)
    s, t = model(x)
    loss = nn.functional.mse_loss(torch.tanh(s), torch.tanh(t))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for a, b in zip(model.teacher.parameters(), model.student.parameters(), strict=False):
            a.mul_(2.9).add_(b, alpha=1 - 2.9)
print("done", loss.item())
