"""Which kernels measure the tensors of a device: what they have in common, and the one place that selects."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import torch

from overflow_recorder.statistics.figures import Figures, Statistics
from overflow_recorder.statistics.formats import Array

if TYPE_CHECKING:
    from overflow_recorder.statistics.values import Values

BackendName = Literal["auto", "torch", "triton"]
"""`auto`: Triton on a CUDA or ROCm device where it is installed, torch operations for all it cannot read."""

Decoder = Callable[[Array], Figures]
"""Turns the row of one tensor, once it has reached the host, into figures. Holds numbers, never a tensor."""


class Backend(Protocol):
    """Writes the figures of tensors into rows of a buffer on their device, and never waits for it."""

    columns: int
    """float64 numbers a row."""

    def reset(self, rows: torch.Tensor) -> None:
        """Prepare rows before they are written (again)."""

    def enqueue(self, values: Values, rows: torch.Tensor, index: int) -> Decoder | None:
        """Have the figures of a tensor with at least one element written into `rows[index]`; under `quiet`.

        Returns:
            What reads that row; None where this backend cannot read such a tensor.
        """


class Backends(NamedTuple):
    """What measures the tensors of one device."""

    quick: Backend | None
    """Reads plain dense tensors, and runs no torch operation."""
    general: Backend
    """Reads everything."""


def select_backends(name: BackendName, device: torch.device, statistics: Statistics) -> Backends:
    """Choose the backends for a device.

    Raises:
        ImportError: `triton` was asked for by name and is not installed.
    """
    from overflow_recorder.statistics.torch_operations import TorchOperations

    general = TorchOperations(statistics)
    if name == "torch" or (name == "auto" and not _has_triton(device)):
        return Backends(None, general)
    from overflow_recorder.statistics.triton.kernels import TritonKernels

    return Backends(TritonKernels(statistics), general)


def _has_triton(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
