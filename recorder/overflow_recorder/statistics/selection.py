"""Which kernels measure the tensors of a device: the one place that selects."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from overflow_recorder.statistics.torch_operations import TorchOperations

if TYPE_CHECKING:
    from overflow_recorder.statistics.backends import Backend
    from overflow_recorder.statistics.figures import Statistics

BackendName = Literal["auto", "torch", "triton"]
"""`auto`: Triton on a CUDA or ROCm device where it is installed, torch operations for all it cannot read."""


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
    general = TorchOperations(statistics)
    if name == "torch" or (name == "auto" and not _has_triton(device)):
        return Backends(None, general)
    from overflow_recorder.statistics.triton.kernels import TritonKernels

    return Backends(TritonKernels(statistics), general)


def _has_triton(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
