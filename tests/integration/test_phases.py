"""Loops as people write them: every frame has its batch, its phase and its optimizer step."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.recorder.recordings import EVERYTHING, Forward, recording

if TYPE_CHECKING:
    from pathlib import Path

    from overflow_analyzer.format.frames import Frame

X = torch.ones(2, 2)


class Checkpointed(nn.Module):
    """Two layers, the first of which is not kept but computed again in the backward."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.second = nn.Linear(2, 2)
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.first, x, use_reentrant=self.use_reentrant)
        return self.second(x).sum()  # type: ignore[no-any-return]


def summary(frames: list[Frame]) -> list[tuple[int, str, list[str]]]:
    """(batch, phase, names) of each run of frames."""
    runs = groupby(frames, lambda frame: (frame.batch_number, frame.phase))
    return [(*key, [frame.module_name for frame in group]) for key, group in runs]


FORWARD = ["first.0", "first.1", "first", "second", ""]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_recomputed_forward_belongs_to_the_batch_whose_backward_runs_it(use_reentrant: bool, tmp_path: Path) -> None:
    # GIVEN two forwards before two backwards, as in a pipeline
    model = Checkpointed(use_reentrant=use_reentrant)

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames):
        losses = [model(X.clone().requires_grad_()) for _ in range(2)]
        for loss in losses:
            loss.backward()
        model(X.clone().requires_grad_()).backward()

    # THEN (without reentrance the second forward stops as soon as nothing more is needed)
    recomputed = FORWARD[:3] if use_reentrant else FORWARD[:1]
    assert [(batch, phase, names[: len(recomputed)]) for batch, phase, names in summary(frames)] == [
        (0, "train", recomputed),
        (1, "train", recomputed),
        (0, "recompute", recomputed),
        (1, "recompute", recomputed),
        (2, "train", recomputed),
        (2, "recompute", recomputed),
    ]
    assert [frame.call_index for frame in frames if frame.module_name == "first.0"] == [0, 0, 1, 1, 0, 1]


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_recomputed_forward_has_the_same_figures(use_reentrant: bool, tmp_path: Path) -> None:
    # GIVEN dropout, whose random state torch puts back
    inner = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model = Forward(lambda inner, x: checkpoint(inner, x, use_reentrant=use_reentrant).sum(), inner)

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames):
        model(X.clone().requires_grad_()).backward()

    # THEN
    first = [frame.entries for frame in frames if frame.phase == "train"]
    again = [frame.entries for frame in frames if frame.phase == "recompute"]
    assert again
    assert first[: len(again)] == again


def test_recomputed_frames_of_batches_that_were_not_asked_for(tmp_path: Path) -> None:
    # GIVEN
    model = Checkpointed(use_reentrant=False)

    # WHEN batch 1's forward runs before batch 0's backward, and only batch 0 was asked for
    options = {"every_n_batches": None, "trace_batch_nums": [0], "roles": EVERYTHING}
    with recording(model, tmp_path / "run", **options) as (_, frames):
        losses = [model(X) for _ in range(2)]
        for loss in reversed(losses):
            loss.backward()
        model(X).backward()

    # THEN
    assert {frame.batch_number for frame in frames} == {0}
    assert {frame.phase for frame in frames} == {"train", "recompute", "backward"}


def test_five_evaluations_between_two_training_steps(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames):
        for _ in range(2):
            model.train()
            model(X).sum().backward()
            model.eval()
            with torch.no_grad():
                for _ in range(5):
                    model(X)

    # THEN each root forward is a batch, and its phase says what it was for
    assert [(frame.batch_number, frame.phase) for frame in frames] == [
        (number, "train" if number in {0, 6} else "eval") for number in range(12)
    ]


def test_five_evaluations_in_a_loop_that_counts_itself(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)

    # WHEN it says so before its first batch
    with recording(model, tmp_path / "run") as (recorder, frames):
        recorder.begin_batch(0)
        for _ in range(2):
            model(X).sum().backward()
            with torch.no_grad():
                for _ in range(5):
                    model(X)
            recorder.step()

    # THEN training steps are numbered without gaps
    assert [(frame.batch_number, frame.phase, frame.call_index) for frame in frames] == [
        (batch, "eval" if call else "train", call) for batch in range(2) for call in range(6)
    ]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
def test_phases_of_modes(training: bool, grad: bool, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2)).train(training)
    model[0].eval()  # a frozen part of a model that is trained
    with recording(model, tmp_path / "run") as (_, frames), torch.set_grad_enabled(grad):
        model(X)
    assert {frame.phase for frame in frames} == {"train" if training and grad else "eval"}


def test_gradient_accumulation(tmp_path: Path) -> None:
    # GIVEN
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    # WHEN
    with recording(model, tmp_path / "run", roles=EVERYTHING) as (_, frames):
        for micro_batch in range(6):
            (model(X).sum() / 3).backward()
            if micro_batch % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()

    # THEN batches are micro-batches, and steps are steps
    forwards = [(frame.batch_number, frame.optimizer_step) for frame in frames if frame.phase == "train"]
    assert forwards == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    sums = [one.abs_max for frame in frames for one in frame.of_roles("weight_grad") if one.context == "weight"]
    assert sums == pytest.approx([2 / 3, 4 / 3, 2] * 2)


def test_two_networks_with_an_optimizer_each(tmp_path: Path) -> None:
    # GIVEN a generator, a discriminator, and a loop that calls both several times a step
    model = nn.ModuleDict({"generator": nn.Linear(2, 2), "discriminator": nn.Linear(2, 1)})
    optimizers = {name: torch.optim.SGD(part.parameters(), lr=0.1) for name, part in model.items()}

    # WHEN
    with recording(model, tmp_path / "run", roles=["output", "weight_grad"]) as (recorder, frames):
        for _ in range(2):
            fake = model["generator"](X)
            (model["discriminator"](fake.detach()) - model["discriminator"](X)).mean().backward()
            optimizers["discriminator"].step()
            model["discriminator"](fake).mean().backward()
            optimizers["generator"].step()
            recorder.step()

    # THEN
    forwards = [
        (frame.batch_number, frame.module_name, frame.call_index, frame.optimizer_step)
        for frame in frames
        if frame.phase == "train"
    ]
    assert forwards == [
        row
        for batch in range(2)
        for row in [
            (batch, "generator", 0, 2 * batch),
            (batch, "discriminator", 0, 2 * batch),
            (batch, "discriminator", 1, 2 * batch),
            (batch, "discriminator", 2, 2 * batch + 1),
        ]
    ]


@pytest.mark.parametrize("counted", [True, False])
def test_two_forwards_a_step_at_different_weights(counted: bool, tmp_path: Path) -> None:
    # GIVEN a step as in sharpness-aware minimization: climb, look, go back, and only then descend
    model = nn.Linear(2, 2, bias=False)
    nn.init.constant_(model.weight, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    # WHEN
    with recording(model, tmp_path / "run") as (recorder, frames):
        if counted:
            recorder.begin_batch(0)
        for _ in range(2):
            model(X).sum().backward()
            with torch.no_grad():
                model.weight.add_(1.0)
            optimizer.zero_grad()
            model(X).sum().backward()
            with torch.no_grad():
                model.weight.sub_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            if counted:
                recorder.step()

    # THEN each forward shows the weights it ran with
    weights = [one.abs_max for frame in frames for one in frame.of_roles("weight")]
    assert weights == [1.0, 2.0, 0.0, 1.0]
    expected = [(0, 0), (0, 1), (1, 0), (1, 1)] if counted else [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert [(frame.batch_number, frame.call_index) for frame in frames] == expected
    assert [frame.optimizer_step for frame in frames] == [0, 0, 1, 1]


def test_a_forward_inside_of_a_backward_of_ones_own(tmp_path: Path) -> None:
    # GIVEN a layer that computes what it needs again, as reversible networks do
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
            ctx.layer = layer
            ctx.save_for_backward(x)
            return layer(x)  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                ctx.layer(x).backward(gradients[0])
            return x.grad, None

    apply: Any = Again.apply
    model = Forward(lambda layer, x: apply(x, layer).sum(), nn.Linear(2, 2))

    # WHEN
    with recording(model, tmp_path / "run") as (_, frames):
        for _ in range(2):
            model(X.clone().requires_grad_()).backward()

    # THEN
    assert summary(frames) == [
        (batch, phase, names) for batch in range(2) for phase, names in [("train", ["0", ""]), ("recompute", ["0"])]
    ]
