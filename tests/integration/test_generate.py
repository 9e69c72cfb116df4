"""``generate()``: a root forward, and so a batch, a token; the same tokens as without a recorder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

from tests.recorder.recordings import as_expected, recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TOKENS = 4
PROMPT = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def decoder() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=None, **sizes)).eval()


def encoder_and_decoder() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    return T5ForConditionalGeneration(T5Config(decoder_start_token_id=0, eos_token_id=None, **sizes)).eval()


def generate(model: Any, **options: Any) -> torch.Tensor:
    lengths = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "pad_token_id": 0}
    return model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **lengths, **options)  # type: ignore[no-any-return]


STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True},
    "beams": {"do_sample": False, "num_beams": 3},
    "without a cache": {"do_sample": False, "use_cache": False},
}


@pytest.mark.parametrize("make", [decoder, encoder_and_decoder])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_same_tokens_and_a_batch_for_each(make: Callable[[], Any], strategy: str, tmp_path: Path) -> None:
    # GIVEN
    model = make()
    torch.manual_seed(1)
    expected = [generate(model, **STRATEGIES[strategy]) for _ in range(2)]
    state = torch.get_rng_state()

    # WHEN
    model = make()
    torch.manual_seed(1)
    with recording(model, tmp_path / "run") as (_, frames):
        tokens = [generate(model, **STRATEGIES[strategy]) for _ in range(2)]

    # THEN
    assert all(map(torch.equal, tokens, expected))
    assert torch.equal(torch.get_rng_state(), state)
    assert {frame.phase for frame in frames} == {"eval"}
    roots = [frame.batch_number for frame in frames if frame.module_name == ""]
    assert roots == list(range(2 * TOKENS))


def test_an_encoder_is_called_by_itself_before_the_first_token(tmp_path: Path) -> None:
    # GIVEN
    model = encoder_and_decoder()

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames):
        for _ in range(2):
            generate(model, do_sample=False)

    # THEN what it makes before the root is called again still belongs to the batch before
    encoded = [(frame.batch_number, frame.call_index) for frame in frames if frame.module_name == "encoder"]
    assert encoded == [(0, 0), (TOKENS - 1, 0)]


def test_a_loop_that_counts_itself_makes_one_batch_of_each_text(tmp_path: Path) -> None:
    # GIVEN
    model = encoder_and_decoder()

    # WHEN
    with recording(model, tmp_path / "run") as (recorder, frames):
        recorder.begin_batch(0)
        for _ in range(2):
            generate(model, do_sample=False)
            recorder.step()

    # THEN
    roots = [(frame.batch_number, frame.call_index) for frame in frames if frame.module_name == ""]
    assert roots == [(batch, call) for batch in range(2) for call in range(TOKENS)]
    encoders = [frame for frame in frames if frame.module_name == "encoder"]
    assert [frame.batch_number for frame in encoders] == [0, 1]
    assert as_expected(encoders[0]) == as_expected(encoders[1])
