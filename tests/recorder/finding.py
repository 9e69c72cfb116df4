"""A finder of models at work on a few modules, and what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from overflow_recorder.launch.model_finding import ModelFinder

if TYPE_CHECKING:
    from collections.abc import Callable

X = torch.ones(1, 2)


class Net(nn.Module):
    """Changes its input in place, and is given it by name."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, first: torch.Tensor = X, *, value: torch.Tensor = X) -> torch.Tensor:
        output: torch.Tensor = self.linear(first + value.relu_())
        return output


class Heard:
    """What a finder says."""

    def __init__(self) -> None:
        self.found: list[tuple[nn.Module, nn.Module]] = []
        self.others: list[str] = []
        self.missing: list[list[str]] = []
        self.when_found: Callable[[nn.Module], object] = lambda model: None

    def finder(self, name: str | None = None) -> ModelFinder:
        finder = ModelFinder(name, self._found, self.others.append, lambda: self.missing.append(finder.called))
        return finder

    def _found(self, model: nn.Module, called: nn.Module) -> None:
        self.found.append((model, called))
        self.when_found(model)


def watched(finder: ModelFinder, *calls: Callable[[], Any]) -> None:
    finder.arm()
    try:
        for call in calls:
            call()
    finally:
        finder.disarm()


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(requires_grad=False)
