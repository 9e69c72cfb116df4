"""A GAN on toy data: two models, two optimizers. One batch of the real data is not normalised."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

NOISE, PIXELS, BATCH, STEPS, BAD_STEP = 4, 16, 8, 4, 2


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, PIXELS), nn.Tanh())

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        image: torch.Tensor = self.main(noise)
        return image


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first = nn.Linear(PIXELS, 16)
        nn.init.normal_(first.weight)
        self.main = nn.Sequential(first, nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.main(image)
        return logits.squeeze(-1)


torch.manual_seed(0)
generator = Generator()
discriminator = Discriminator()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-2)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-2)
criterion = nn.BCEWithLogitsLoss()
real_label, fake_label = torch.ones(BATCH), torch.zeros(BATCH)

for step in range(STEPS):
    real = torch.rand(BATCH, PIXELS)
    if step == BAD_STEP:
        real *= 3e38

    optimizer_d.zero_grad()
    loss_real = criterion(discriminator(real), real_label)
    fake = generator(torch.randn(BATCH, NOISE))
    loss_fake = criterion(discriminator(fake.detach()), fake_label)
    if torch.isfinite(loss_real):
        (loss_real + loss_fake).backward()
        optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = criterion(discriminator(fake), real_label)
    loss_g.backward()
    optimizer_g.step()
    print(step, loss_real.item(), loss_fake.item(), loss_g.item())

weights = b"".join(p.detach().numpy().tobytes() for p in (*generator.parameters(), *discriminator.parameters()))
print(hashlib.sha256(weights).hexdigest())
