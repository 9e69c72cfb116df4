# Autocast fp16 attention after a weight spike.
import torch
from torch import nn


class Attn(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.a = nn.LayerNorm(d), Attn(d, 4)
        self.n2, self.m = nn.LayerNorm(d), nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.a(self.n1(x))
        return x + self.m(self.n2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList(Block(64) for _ in range(6))
        self.head = nn.Linear(64, 100)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(24):
    ids = torch.randint(0, 100, (8, 16))
    if step == 20:
        with torch.no_grad():
            model.blocks[4].n1.weight.fill_(3e4)
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(ids)
    loss = nn.functional.cross_entropy(logits.float().view(-1, 100), ids.view(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", loss.item())
