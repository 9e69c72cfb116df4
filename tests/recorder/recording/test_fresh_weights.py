"""Figures of a weight are those that it has in the forward, however it was updated: `p.data` raises no version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from overflow_recorder.recording.measuring import MOST_FORWARDS
from overflow_recorder.statistics import measure
from tests.recorder.recordings import entry, recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

X = torch.ones(1, 2)


class Model(nn.Module):
    """A model whose forward may be called, or only the module in it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        nn.init.ones_(self.inner.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # type: ignore[no-any-return]

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        """Call the module without the root's forward."""
        return self.inner(x)  # type: ignore[no-any-return]


class OwnOptimizer:
    """No optimizer of torch's: nobody hears of its steps."""

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())

    def step(self) -> None:
        for parameter in self._parameters:
            parameter.data -= 0.5 * parameter.grad  # type: ignore[operator]


class Engine:
    """Optimizes copies of the weights and copies them back, as engines for mixed precision do."""

    def __init__(self, model: nn.Module) -> None:
        self._pairs = [(parameter, parameter.detach().clone()) for parameter in model.parameters()]
        self._optimizer = torch.optim.SGD([master for _, master in self._pairs], lr=0.5)

    def step(self) -> None:
        for parameter, master in self._pairs:
            master.grad = parameter.grad
        self._optimizer.step()
        for parameter, master in self._pairs:
            parameter.data.copy_(master)


def fused(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.5, fused=True)


ways_to_call = pytest.mark.parametrize("call", [Model.__call__, Model.loss], ids=["root", "no root"])
ways_to_count = pytest.mark.parametrize("counted", [False, True], ids=["by the recorder", "by the loop"])


def look(model: Model, seen: list[float]) -> None:
    seen.append(model.inner.weight.detach().abs().max().item())


def weights_in(frames: list[Any]) -> list[float | None]:
    return [entry(frame, "weight").abs_max for frame in frames if frame.module_name == "inner"]


@ways_to_call
@ways_to_count
@pytest.mark.parametrize("optimize", [OwnOptimizer, Engine, fused])
def test_after_a_step(optimize: Callable[[nn.Module], Any], counted: bool, call: Any, tmp_path: Path) -> None:
    # GIVEN
    model, seen = Model(), list[float]()
    optimizer = optimize(model)
    with recording(model, tmp_path / "run") as (recorder, frames):
        if counted:
            recorder.begin_batch(0)
        for _ in range(4):
            look(model, seen)
            call(model, X).sum().neg().backward()
            optimizer.step()
    # THEN each forward's figures are those that the weight had: gradients are -1, -2, -3, summed as they are
    assert seen == [1.0, 1.5, 2.5, 4.0]
    assert weights_in(frames) == seen


@ways_to_call
def test_a_moving_average_is_swapped_in_for_an_evaluation(call: Any, tmp_path: Path) -> None:
    # GIVEN
    model, seen = Model(), list[float]()
    with recording(model, tmp_path / "run") as (_, frames):
        for scale in (3.0, 5.0):
            look(model, seen)
            call(model, X).sum().backward()
            # WHEN the weights are swapped, the model is evaluated, and they are swapped back
            kept = model.inner.weight.detach().clone()
            model.inner.weight.data.mul_(scale)
            look(model, seen)
            with torch.no_grad():
                call(model, X)
            model.inner.weight.data.copy_(kept)
            look(model, seen)
            call(model, X)
    # THEN
    assert weights_in(frames) == seen


def test_where_nothing_is_noticed_figures_are_64_forwards_old_at_most(tmp_path: Path) -> None:
    # GIVEN a loop that never calls the root, without a backward or a step
    model, seen = Model(), list[float]()
    with recording(model, tmp_path / "run") as (_, frames), torch.no_grad():
        for number in range(3 * MOST_FORWARDS):
            model.inner.weight.data.fill_(number + 1.0)
            look(model, seen)
            model.loss(X)
    # THEN
    recorded = weights_in(frames)
    assert len(recorded) == len(seen)
    assert all(now - before < MOST_FORWARDS for now, before in zip(seen, recorded, strict=True) if before is not None)
    assert sorted({one for one in recorded if one is not None}) == [1.0, 65.0, 129.0]


def test_a_module_that_is_called_often_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a root that calls a module more than 64 times
    class Often(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2 * MOST_FORWARDS):
                x = self.inner(x)
            return x

    model = Often()
    read: list[int] = []

    def counted(tensor: torch.Tensor, statistics: Any) -> Any:
        read.append(id(tensor))
        return measure(tensor, statistics)

    monkeypatch.setattr("overflow_recorder.recording.measuring.measure", counted)
    # WHEN
    with recording(model, tmp_path / "run"), torch.no_grad():
        model(X)
    # THEN
    assert read.count(id(model.inner.weight)) == 1
