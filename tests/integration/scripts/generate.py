"""Generating with a tiny GPT-2 in float16. Behind the second prompt a checkpoint is loaded that has diverged."""

from __future__ import annotations

import hashlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel

TOKENS = 3


def diverge(model: GPT2LMHeadModel) -> None:
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight.mul_(1e4)
        model.transformer.h[1].mlp.c_proj.weight.mul_(1e4)


def main() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=None
    )
    model = GPT2LMHeadModel(config).half().eval()
    for prompt in range(4):
        if prompt == 2:
            diverge(model)
        tokens = torch.randint(1, 40, (1, 4))
        print(
            model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=TOKENS,
                min_new_tokens=TOKENS,
                do_sample=False,
                pad_token_id=0,
            ).tolist()
        )
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest())


if __name__ == "__main__":
    main()
