"""Layers whose own code looks for hooks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from tests.recorder.recordings import entry, global_hooks, hooks_on, notes_of, record, recording

if TYPE_CHECKING:
    from pathlib import Path

X = torch.ones(1, 2)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))


def encoder(**options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    options = {"batch_first": True, "dropout": 0.1, **options}
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, **options), 2)


def run_encoder(model: nn.Module, *, padded: bool) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x = torch.randn(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if padded else None
    outputs = []
    for training in (True, False, True):
        model.train(training)
        with contextlib.nullcontext() if training else torch.no_grad():
            outputs.append(model(x, src_key_padding_mask=mask).detach())
    return outputs


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("padded", [False, True])
def test_a_fused_encoder_layer_stays_fused(padded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    expected = run_encoder(encoder(), padded=padded)
    fused = Mock(wraps=torch._transformer_encoder_layer_fwd)
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", fused)

    # WHEN
    model = encoder()
    with recording(model, tmp_path / "run") as (_, frames):
        outputs = run_encoder(model, padded=padded)

    # THEN the same kernel and the same bits
    assert fused.call_count == 2
    assert all(map(torch.equal, outputs, expected))
    batches = [[frame.module_name for frame in frames if frame.batch_number == batch] for batch in range(3)]
    assert batches[1] == ["layers.0", "layers.1", ""]
    assert batches[0] == batches[2]
    assert len(batches[0]) > 10
    assert any("layers.0, layers.1: in evaluation" in note for note in notes_of(tmp_path / "run"))
    assert hooks_on(model) == []
    assert global_hooks() == []


def test_an_encoder_layer_as_the_root(tmp_path: Path) -> None:
    # GIVEN
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(1, 3, 8)

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames):
        model(x)
        model.eval()
        with torch.no_grad():
            output = model(x)
        model.train()
        model(x)

    # THEN
    with torch.no_grad():
        assert torch.equal(model.eval()(x), output)
    assert [frame.batch_number for frame in frames if frame.module_name == ""] == [0, 1, 2]
    assert [frame.batch_number for frame in frames if frame.module_name == "linear1"] == [0, 2]


def test_an_encoder_layer_that_fuses_raises(tmp_path: Path) -> None:
    # GIVEN an input of the wrong width
    model = encoder().eval()

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames), torch.no_grad():
        for _ in range(2):
            with pytest.raises((RuntimeError, AssertionError)):
                model(torch.randn(1, 3, 6))
        model(torch.randn(1, 3, 8))

    # THEN the exception is recorded, and the next call as ever
    assert [frame.module_name for frame in frames] == ["layers.0", ""] * 2 + ["layers.0", "layers.1", ""]
    assert entry(frames[0], "output").note == "forward raised RuntimeError"
    assert hooks_on(model) == []
    assert global_hooks() == []


@pytest.mark.parametrize("options", [{"batch_first": False}, {"activation": torch.tanh}, {"nhead": 1}])
def test_an_encoder_layer_that_does_not_fuse_is_recorded_whole(options: dict[str, Any], tmp_path: Path) -> None:
    # GIVEN
    settings = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True, **options}
    model = nn.TransformerEncoderLayer(**settings).eval()

    # WHEN
    with torch.no_grad():
        frames = record(model, tmp_path / "run", lambda: model(torch.randn(1, 3, 8)))

    # THEN
    assert "linear1" in [frame.module_name for frame in frames]
    assert notes_of(tmp_path / "run") == [
        note for note in notes_of(tmp_path / "run") if note.startswith("self_attn.out_proj: never called by itself")
    ]
