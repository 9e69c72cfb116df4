# A checkpoint whose one weight holds nan.
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
state = {k: v.clone() for k, v in model.state_dict().items()}
state["2.weight"][7, 3] = float("nan")
model.load_state_dict(state)
optimizer = torch.optim.Adam(model.parameters())
for _step in range(10):
    x = torch.randn(32, 16)
    loss = nn.functional.cross_entropy(model(x), torch.randint(0, 4, (32,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", loss.item())
