"""How many rows of a mask are closed throughout: what a softmax makes nan of."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from overflow_recorder.statistics.quiet import quiet

if TYPE_CHECKING:
    import torch


def masked_rows(tensor: torch.Tensor) -> int | None:
    """Count the rows of the last dimension that are -inf throughout; None where that cannot be had.

    Args:
        tensor: In the host's memory. It takes no more memory than a number a row, and a row that an expanded tensor
            repeats is read once.
    """
    repeats = 1
    with quiet(), suppress(RuntimeError, TypeError, IndexError):  # a layout or dtype that has no maximum
        for dimension, (size, stride) in enumerate(zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)):
            if size > 1 and not stride:
                tensor, repeats = tensor.narrow(dimension, 0, 1), repeats * size
        return repeats * int((tensor.amax(-1) == -math.inf).sum())
    return None
