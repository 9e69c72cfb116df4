"""Losses are noticed where a backward starts, before it runs, and nothing of the backward changes."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from overflow_recorder import NonFiniteError, TraceRecorder
from overflow_recorder.errors import NonFiniteWarning
from tests.recorder.recordings import frames_of, record

if TYPE_CHECKING:
    from pathlib import Path

X = torch.ones(1, 2)
NAN = float("nan")
INF = float("inf")


def loss_frames(path: Path) -> list[tuple[int, str, str, int]]:
    return [
        (frame.batch_number, one.role, one.context, one.nonfinite_count)
        for frame in frames_of(path)
        if frame.module_name == "loss"
        for one in frame.entries
    ]


def test_a_loss_that_is_nan_ends_the_run_before_its_backward(tmp_path: Path) -> None:
    # GIVEN a model whose second loss is nan although all that it gives out is finite
    model = nn.Linear(2, 1)
    with TraceRecorder(model, tmp_path / "run"):
        (model(X).sum() * 2).backward()
        model.zero_grad()
        loss = model(X).sum() * NAN
        # WHEN
        with pytest.raises(NonFiniteError, match="loss of the training step, batch 1: 1 nan of 1 element"):
            loss.backward()
    # THEN no gradient was made, and the trace has the loss
    assert model.weight.grad is None
    assert loss_frames(tmp_path / "run") == [(1, "value", "loss", 1)]


def test_a_finite_loss_makes_no_frame(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    frames = record(model, tmp_path / "run", lambda: model(X).sum().backward())
    assert [frame.module_name for frame in frames] == [""]


def test_several_losses_are_numbered(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with pytest.raises(NonFiniteError, match=r"loss\[1\] of the training step"), TraceRecorder(model, tmp_path / "run"):
        torch.autograd.backward([model(X).sum(), model(X).sum() * INF])
    assert loss_frames(tmp_path / "run") == [(1, "value", "loss[0]", 0), (1, "value", "loss[1]", 1)]


def test_an_inf_that_a_scale_makes_is_none_of_the_loss(tmp_path: Path) -> None:
    # GIVEN a loss that does not fit once it is scaled
    model = nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    with TraceRecorder(model, tmp_path / "run"):
        scaled = scaler.scale((model(X) * 0 + 1e10).sum())
        assert torch.isinf(scaled)
        # WHEN
        scaled.backward()
    # THEN nothing was detected
    assert loss_frames(tmp_path / "run") == []


def test_a_loss_that_is_scaled_is_looked_at_before_it_is(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with pytest.raises(NonFiniteError, match="loss of the training step"), TraceRecorder(model, tmp_path / "run"):
        scaler.scale(model(X).sum() * INF)


def test_a_tensor_whose_gradient_is_given_is_no_loss(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with TraceRecorder(model, tmp_path / "run"):
        (model(X) * INF).backward(torch.zeros(1, 1))
    assert loss_frames(tmp_path / "run") == []


def test_the_loss_of_another_model_is_not_ours(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    with TraceRecorder(model, tmp_path / "run"):
        model(X)
        (other(X).sum() * NAN).backward()
    assert loss_frames(tmp_path / "run") == []


def test_an_ignored_loss(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with TraceRecorder(model, tmp_path / "run", ignore=["loss:loss"]):
        (model(X).sum() * NAN).backward()
    assert loss_frames(tmp_path / "run") == []


def test_a_warning_comes_once(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with TraceRecorder(model, tmp_path / "run", on_nonfinite="warn"):
            for _ in range(3):
                (model(X).sum() * NAN).backward()
    assert [str(one.message) for one in caught if one.category is NonFiniteWarning] == [
        "inf/nan detected in loss of the training step, batch 0: 1 nan of 1 element"
    ]


def test_torch_is_as_it_was_once_nobody_listens(tmp_path: Path) -> None:
    # GIVEN
    backward, scale = torch.autograd.backward, torch.amp.GradScaler.scale
    one = TraceRecorder(nn.Linear(2, 1), None).start()
    other = TraceRecorder(nn.Linear(2, 1), None).start()
    assert torch.autograd.backward is not backward
    # WHEN
    one.close()
    assert torch.autograd.backward is not backward
    other.close()
    # THEN
    assert torch.autograd.backward is backward
    assert torch.amp.GradScaler.scale is scale


def test_another_wrapper_around_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN somebody who puts a wrapper around what stands there while a recorder is attached
    model = nn.Linear(2, 1)
    original = torch.autograd.backward
    recorder = TraceRecorder(model, None, on_nonfinite="ignore").start()
    ours, seen = torch.autograd.backward, []

    def theirs(*args: object, **kwargs: object) -> None:
        seen.append(len(args))
        ours(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    # WHEN the recorder goes
    recorder.close()
    # THEN theirs is still called, and so is torch's
    model(X).sum().backward()
    assert seen
    assert model.weight.grad is not None
    # WHEN another recorder comes THEN it hears of a loss once
    with pytest.raises(NonFiniteError), TraceRecorder(model, None):
        (model(X).sum() * NAN).backward()
    monkeypatch.setattr(torch.autograd, "backward", ours)
    TraceRecorder(model, None).start().close()
    assert torch.autograd.backward is original
