"""What all kernels that measure the tensors of a device have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from overflow_recorder.statistics.figures import Figures
from overflow_recorder.statistics.formats import Array

if TYPE_CHECKING:
    import torch

    from overflow_recorder.statistics.values import Values

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
