"""Fine-tuning a tiny BERT with the Trainer. A numeric column of one sample was never normalised."""

from __future__ import annotations

import hashlib
import tempfile
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils.data import IterableDataset
from transformers import BertConfig, BertModel, PrinterCallback, Trainer, TrainingArguments, set_seed

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH, STEPS, BAD_BATCH = 4, 3, 3


class Samples(IterableDataset[dict[str, torch.Tensor]]):
    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(0)
        for index in range(10**6):
            age = torch.rand(1, generator=generator)
            yield {
                "input_ids": torch.randint(50, (6,), generator=generator),
                "age": age * 1e25 if index == BATCH * BAD_BATCH + 1 else age,
                "labels": torch.randint(2, (), generator=generator),
            }


class Square(nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value * value


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        self.bert = BertModel(BertConfig(vocab_size=50, max_position_embeddings=8, **size))
        self.age = nn.Sequential(nn.Linear(1, 4), Square())
        self.head = nn.Linear(16 + 4, 2)

    def forward(self, input_ids: torch.Tensor, age: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        pooled = self.bert(input_ids=input_ids).pooler_output
        logits = self.head(torch.cat([pooled, self.age(age)], dim=-1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    set_seed(0)
    model = Classifier()
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=2,
            max_steps=STEPS,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Samples())
        trainer.remove_callback(PrinterCallback)  # it prints how long it took
        trainer.train()
    for entry in trainer.state.log_history[:-1]:
        print(entry["step"], entry["loss"], entry["grad_norm"])
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


if __name__ == "__main__":
    main()
