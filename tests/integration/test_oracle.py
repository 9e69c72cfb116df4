"""transformers' ``DebugUnderflowOverflow`` as the oracle: what it prints, ours prints.

Where the two differ on purpose, ``docs/compatibility.md`` says why and ``test_compatibility.py`` shows it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from tests.integration.debuggers import Ours, Upstream, both, figure_lines, watch

if TYPE_CHECKING:
    from collections.abc import Callable

FLOAT16_LIMIT = 65504.0


def plain() -> nn.Sequential:
    """A model of plain tensors: one in, one out, everywhere."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    with torch.no_grad():
        model[0].weight.mul_(8)  # type: ignore[operator]  # so that an input near float16's limit overflows
    return model.half()


def ones(*scales: float) -> list[tuple[torch.Tensor]]:
    return [(torch.ones(2, 8, dtype=torch.float16) * scale,) for scale in scales]


# Detection mode.


@pytest.mark.parametrize("frames", [1, 2, 5, 6, 7, 21])
@pytest.mark.parametrize("bad_batch", [0, 1, 3])
def test_detection_prints_the_same_bytes(frames: int, bad_batch: int) -> None:
    # GIVEN a model whose first Linear overflows in one batch
    scales = [1.0] * bad_batch + [FLOAT16_LIMIT]
    # WHEN both debuggers watch it, THEN they print the same and stop in the same batch
    upstream, ours = both(plain, ones(*scales), max_frames_to_save=frames)
    assert ours.text == upstream.text
    assert f"Detected inf/nan during batch_number={bad_batch}\n" in ours.text
    assert isinstance(ours.error, ValueError)
    assert isinstance(upstream.error, ValueError)
    assert ours.batches == upstream.batches == bad_batch


def test_detection_prints_the_same_bytes_for_a_bad_weight() -> None:
    # GIVEN a weight with a nan and an inf in a later module
    def make() -> nn.Sequential:
        model = plain()
        with torch.no_grad():
            model[2][0].weight[0, 0], model[2][0].weight[1, 1] = float("nan"), float("-inf")  # type: ignore[index]
        return model

    # WHEN both watch it, THEN both name the weight's nans and infs, and print the same report
    upstream, ours = both(make, ones(1.0))
    assert ours.text == upstream.text
    assert ours.text.startswith("weight has nans\nweight has infs\n")


def test_the_operation_stands_behind_the_same_bytes() -> None:
    # GIVEN a model that overflows WHEN ours runs its module again, as it does unless told otherwise
    inputs = list(ones(1.0, FLOAT16_LIMIT))
    upstream, _ = both(plain, inputs)
    torch.manual_seed(0)
    model = plain()
    text = watch(Ours, model, [functools.partial(model, *args) for args in inputs]).text

    # THEN upstream's text comes first, whole, and then the operation
    assert "Detected inf/nan" in upstream.text
    assert text.startswith(upstream.text.rstrip())
    assert text.removeprefix(upstream.text.rstrip()).lstrip().startswith("Made by\n")


def test_a_finite_run_prints_nothing() -> None:
    upstream, ours = both(plain, ones(1.0, 2.0, 3.0))
    assert upstream == ours == ("", None, 3)


# Tracing mode.


@pytest.mark.parametrize("batches", [[0], [1], [0, 1], [1, 3], [3, 1], [7]])
def test_tracing_prints_the_same_bytes(batches: list[int]) -> None:
    upstream, ours = both(plain, ones(1.0, 2.0, 3.0, 4.0), trace_batch_nums=batches)
    assert ours.text == upstream.text
    assert ours.text.count("*** Starting batch number=") == sum(batch < 4 for batch in batches)


@pytest.mark.parametrize("scale", [FLOAT16_LIMIT, float("nan")])
def test_tracing_names_bad_tensors_with_the_same_bytes_and_goes_on(scale: float) -> None:
    # GIVEN the traced batch, the last of the run, has bad values
    upstream, ours = both(plain, ones(1.0, scale), trace_batch_nums=[1])
    # THEN both name them before each frame, and neither raises
    assert ours.text == upstream.text
    assert "output has " in ours.text
    assert ours.error is upstream.error is None


# Early stop.


@pytest.mark.parametrize("last", [0, 1, 2])
@pytest.mark.parametrize("options", [{}, {"trace_batch_nums": [1]}, {"trace_batch_nums": [0, 1, 2]}])
def test_early_stop_is_in_the_same_batch(last: int, options: dict[str, Any]) -> None:
    upstream, ours = both(plain, ones(1.0, 2.0, 3.0, 4.0), abort_after_batch_num=last, **options)
    assert ours.text == upstream.text
    assert ours.batches == upstream.batches == last
    assert isinstance(ours.error, ValueError)


def test_early_stop_beyond_the_run_does_nothing() -> None:
    upstream, ours = both(plain, ones(1.0, 2.0), abort_after_batch_num=2)
    assert upstream == ours == ("", None, 2)


# The law behind the cases: any chain of plain modules, any inputs.

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(8, 8),
    "no bias": lambda: nn.Linear(8, 8, bias=False),
    "relu": nn.ReLU,
    "norm": lambda: nn.LayerNorm(8),
    "softmax": lambda: nn.Softmax(dim=-1),
    "identity": nn.Identity,
    "dropout": lambda: nn.Dropout(0.5),
    "nested": lambda: nn.Sequential(nn.GELU(), nn.Linear(8, 8)),
}
SCALES = st.sampled_from([0.0, 1e-6, 1.0, 300.0, 2e4, FLOAT16_LIMIT, float("inf"), float("nan")])


@settings(max_examples=40, deadline=None)
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=6),
    scales=st.lists(SCALES, min_size=1, max_size=4),
    frames=st.integers(1, 12),
)
def test_detection_prints_the_same_bytes_for_any_chain(layers: list[str], scales: list[float], frames: int) -> None:
    def make() -> nn.Sequential:
        return nn.Sequential(*(LAYERS[layer]() for layer in layers)).half()

    upstream, ours = both(make, ones(*scales), max_frames_to_save=frames)
    assert ours.text == upstream.text
    assert ours.batches == upstream.batches


@settings(max_examples=40, deadline=None)
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=6),
    scales=st.lists(st.sampled_from([0.0, 1e-6, 1.0]), min_size=1, max_size=4),
    batches=st.sets(st.integers(0, 4), min_size=1),
    last=st.none() | st.integers(0, 4),
)
def test_tracing_prints_the_same_bytes_for_any_chain(
    layers: list[str], scales: list[float], batches: set[int], last: int | None
) -> None:
    # A chain that stays finite: upstream also watches the batches that nobody asked for.
    def make() -> nn.Sequential:
        return nn.Sequential(*(LAYERS[layer]() for layer in layers)).half()

    upstream, ours = both(make, ones(*scales), trace_batch_nums=sorted(batches), abort_after_batch_num=last)
    assert ours.text == upstream.text
    assert ours.batches == upstream.batches


# Models of the zoo, tiny and with random weights.


def t5() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
        feed_forward_proj="gated-gelu", decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config), {"input_ids": tokens(9), "labels": tokens(5)}


def bert() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )  # fmt: skip
    return BertForMaskedLM(config), {"input_ids": tokens(9), "labels": tokens(9)}


def gpt2() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config), {"input_ids": tokens(9), "labels": tokens(9)}


def llama() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    return LlamaForCausalLM(config), {"input_ids": tokens(9), "labels": tokens(9)}


def vit() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = ViTConfig(
        image_size=16, patch_size=8, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )  # fmt: skip
    pixels = torch.rand(2, 3, 16, 16, dtype=torch.float16)
    return ViTForImageClassification(config), {"pixel_values": pixels, "labels": torch.tensor([0, 1])}


def tokens(length: int) -> torch.Tensor:
    return torch.randint(1, 64, (2, length))


ZOO = pytest.mark.parametrize("make", [t5, bert, gpt2, llama, vit])


def text_of(
    debugger: Any, make: Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]], *, overflow: bool, **options: Any
) -> str:
    """Run two batches of a tiny model in training; with ``overflow`` one of its matrices is far too large."""
    torch.manual_seed(0)
    model, inputs = make()
    model.half().train()
    if overflow:
        matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
        with torch.no_grad():
            (matrix := matrices[len(matrices) // 2]).mul_(FLOAT16_LIMIT / 2 / matrix.abs().max())
    printed = watch(debugger, model, [lambda: model(**inputs)] * 2, **options)
    assert isinstance(printed.error, ValueError) if overflow else printed.error is None
    return printed.text


@ZOO
@pytest.mark.parametrize("frames", [4, 21, 100])
def test_every_figure_line_of_a_detection_stands_in_ours(make: Any, frames: int) -> None:
    # GIVEN a weight so large that the float16 forward overflows
    upstream = text_of(Upstream, make, overflow=True, max_frames_to_save=frames)
    ours = text_of(Ours, make, overflow=True, max_frames_to_save=frames)
    # THEN upstream's lines, header and figures, are a subsequence of ours
    assert "Detected inf/nan during batch_number=0" in upstream
    assert_in_order(figure_lines(upstream), figure_lines(ours))


@ZOO
def test_every_figure_line_of_a_traced_batch_stands_in_ours(make: Any) -> None:
    upstream = text_of(Upstream, make, overflow=False, trace_batch_nums=[1])
    ours = text_of(Ours, make, overflow=False, trace_batch_nums=[1])
    assert len(figure_lines(upstream)) > 50
    assert_in_order(figure_lines(upstream), figure_lines(ours))


def assert_in_order(wanted: list[str], among: list[str]) -> None:
    rest = iter(among)
    for line in wanted:
        assert line in rest, f"missing or out of order: {line!r}"
