"""Figures of tensors on a device, without waiting for it."""

from __future__ import annotations

import torch

from overflow_recorder.statistics.figures import Figures, Statistics
from overflow_recorder.statistics.host import measure


class DeviceBuffer:
    """Collects the figures of one device's tensors.

    Args:
        device: Where the tensors are.
        statistics: `extrema` or `full`, for all of them.
    """

    def __init__(self, device: torch.device, statistics: Statistics) -> None:
        self._device = device
        self._statistics = statistics
        self._figures: list[Figures] = []

    def measure(self, tensor: torch.Tensor) -> int:
        """Enqueue the reading of `tensor` and return its slot; never synchronizes, never raises."""
        self._figures.append(measure(tensor, self._statistics))
        return len(self._figures) - 1

    def collect(self) -> list[Figures]:
        """Wait for the device once, return the figures by slot, and start again at slot 0."""
        figures, self._figures = self._figures, []
        return figures
