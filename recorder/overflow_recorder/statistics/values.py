"""The elements of any tensor, as one plain strided tensor and a number of zeros that are nowhere stored."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from overflow_recorder.statistics.unwrap import is_a, unwrap

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


class Values(NamedTuple):
    """All elements of a tensor."""

    tensor: torch.Tensor
    """A plain strided tensor."""
    zeros: int = 0
    """Elements that are zero and not stored."""
    mask: torch.Tensor | None = None
    """Where it is False, an element does not count."""


def values_of(tensor: torch.Tensor) -> Values | None:
    """The elements of `tensor`; None where they cannot be had. Call it under `quiet`.

    Raises:
        Exception: Whatever an exotic tensor's own code raises; the caller then has no figures.
    """
    inner = unwrap(tensor).tensor
    return None if inner is None else _values(wait(inner))


def wait(tensor: torch.Tensor) -> torch.Tensor:
    """The result of a collective that may still be under way."""
    if is_a(tensor, "torch.distributed._functional_collectives", "AsyncCollectiveTensor"):
        return tensor.trigger_wait()  # type: ignore[attr-defined, no-any-return] # returns the plain tensor
    return tensor


def _values(tensor: torch.Tensor) -> Values | None:
    if is_a(tensor, "torch.masked", "MaskedTensor"):
        return _unmasked(tensor)
    if tensor.is_nested:
        return Values(_ragged(tensor))
    if tensor.is_quantized or is_quantized_subclass(tensor):
        return values_of(tensor.dequantize())
    if tensor.layout == torch.sparse_coo:
        return _stored(tensor, tensor.coalesce()._values()) # values() refuses under some grad modes
    if tensor.layout in _COMPRESSED:
        return _stored(tensor, tensor.values())
    if tensor.layout != torch.strided:
        return Values(tensor.to_dense())
    if tensor._is_zerotensor(): # a tensor of zeros without memory, which autograd makes
        return Values(torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape))
    if tensor.numel() and not torch._C._data_address(tensor):
        return None  # a wrapper of an unknown kind, or memory that was given back
    return Values(tensor)


def _stored(tensor: torch.Tensor, stored: torch.Tensor) -> Values:
    return Values(stored, tensor.numel() - stored.numel())


def _unmasked(tensor: Any) -> Values | None:
    """The elements that a MaskedTensor does not mask; of a sparse one, those that are stored."""
    data, mask = tensor._masked_data, tensor._masked_mask # get_data() is an operation of autograd
    if data.layout == torch.sparse_coo:
        data, mask = data.coalesce()._values(), mask.coalesce()._values()
    elif data.layout != torch.strided:
        data, mask = data.values(), mask.values()
    return Values(data, mask=mask)


def _ragged(tensor: Any) -> torch.Tensor:
    """The elements of a nested tensor, without what lies between its parts."""
    if tensor.layout == torch.strided:
        return tensor.values() if tensor.is_contiguous() else _joined(tensor.unbind())
    if tensor._lengths is None: # public only through operations that make autograd nodes
        return tensor._values  # type: ignore[no-any-return] # noqa: SLF001
    starts = tensor._offsets[:-1].tolist()
    dimension = tensor._ragged_idx - 1
    lengths = tensor._lengths.tolist()
    return _joined([tensor._values.narrow(dimension, *span) for span in zip(starts, lengths, strict=True)])


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def is_quantized_subclass(tensor: torch.Tensor) -> bool:
    """Whether a subclass (torchao's, say) brings a `dequantize` of its own."""
    return type(tensor).dequantize is not torch.Tensor.dequantize
