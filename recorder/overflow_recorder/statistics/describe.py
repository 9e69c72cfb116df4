"""The name of a tensor's dtype, device and layout, and its shape."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Description(NamedTuple):
    """What a tensor is. The names are torch's own, without `torch.`."""

    dtype: str
    device: str
    layout: str
    shape: tuple[int, ...]
    numel: int
    """The number of elements measured (see `note` where that is not the product of `shape`)."""
    note: str | None
    """What the figures stand for where that is not simply the tensor's elements."""


def describe(tensor: torch.Tensor) -> Description:
    """Describe `tensor`; never raises."""
    return Description(
        str(tensor.dtype)[6:],
        str(tensor.device),
        str(tensor.layout)[6:],
        tuple(tensor.shape),
        tensor.numel(),
        None,
    )
