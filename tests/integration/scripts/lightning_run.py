"""A Lightning classifier with validation. One training batch is not normalised and is skipped."""

from __future__ import annotations

import hashlib
import logging

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, bad_batch: int | None = None) -> None:
        self.bad_batch = bad_batch

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        features = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return features * (3e38 if index // 4 == self.bad_batch else 1.0), index % 3


class Classifier(lightning.LightningModule):  # type: ignore[misc]  # the library is not typed for us
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.encoder(features))
        return logits

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor | None:
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        print(batch_idx, loss.item())
        return loss if torch.isfinite(loss) else None

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> None:
        print("validation", self(batch[0]).argmax(-1).tolist())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    module = Classifier()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(Samples(bad_batch=2), batch_size=4), DataLoader(Samples(), batch_size=8))
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in module.parameters())).hexdigest())


if __name__ == "__main__":
    main()
