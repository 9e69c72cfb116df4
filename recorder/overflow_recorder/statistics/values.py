"""The elements of any tensor, as one plain strided tensor and a number of zeros that are nowhere stored."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from overflow_recorder.statistics.memory import storage_address
from overflow_recorder.statistics.unwrap import is_a, unwrap

_COMPRESSED = frozenset({torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc})


class Values(NamedTuple):
    """All elements of a tensor."""

    tensor: torch.Tensor
    """A plain strided tensor."""
    zeros: int = 0
    """Elements that are zero and not stored."""
    mask: torch.Tensor | None = None
    """Where it is False, an element does not count."""


def values_of(tensor: torch.Tensor, *, may_wait: bool) -> Values | None:
    """The elements of `tensor`; None where they cannot be had. Call it under `quiet`.

    Args:
        tensor: Any tensor.
        may_wait: Whether operations are allowed that make the host wait for a device.

    Raises:
        Exception: Whatever an exotic tensor's own code raises; the caller then has no figures.
    """
    inner = unwrap(tensor).tensor
    if inner is None:
        return None
    if is_a(inner, "torch.distributed._functional_collectives", "AsyncCollectiveTensor"):
        return values_of(inner.trigger_wait(), may_wait=may_wait)  # type: ignore[attr-defined] # a DTensor's shard may be one
    if is_masked(inner):
        return _unmasked(inner, may_wait=may_wait)
    if inner.is_nested:
        return _ragged(inner, may_wait=may_wait)
    if is_dequantized(inner):
        return values_of(inner.dequantize(), may_wait=may_wait)
    return _plain(inner, may_wait=may_wait)


def _plain(tensor: torch.Tensor, *, may_wait: bool) -> Values | None:
    if tensor.layout == torch.strided:
        if tensor._is_zerotensor():  # zeros without memory, which autograd makes
            return Values(torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape))
        return Values(tensor) if has_memory(tensor) else None
    stored = _stored(tensor, may_wait=may_wait)
    return None if stored is None else Values(stored, tensor.numel() - stored.numel())


def _stored(tensor: torch.Tensor, *, may_wait: bool) -> torch.Tensor | None:
    """The elements that a tensor of another layout stores."""
    if tensor.layout == torch.sparse_coo:
        # Elements at one place are summed, as torch does before it uses them; finding them waits for the device.
        return tensor.coalesce()._values() if tensor.is_coalesced() or may_wait else None
    return tensor.values() if tensor.layout in _COMPRESSED else tensor.to_dense()


def _unmasked(tensor: Any, *, may_wait: bool) -> Values | None:
    """The elements that a MaskedTensor does not mask; of a sparse one, those that are stored."""
    data, mask = tensor._masked_data, tensor._masked_mask  # get_data() is an operation of autograd
    if data.layout != torch.strided:
        data, mask = _stored(data, may_wait=may_wait), _stored(mask, may_wait=may_wait)
    return None if data is None or mask is None else Values(data, mask=mask)


def _ragged(tensor: Any, *, may_wait: bool) -> Values | None:
    """The elements of a nested tensor, without what lies between its parts."""
    if tensor.layout == torch.strided:
        return Values(tensor.values() if tensor.is_contiguous() else _joined(tensor.unbind()))
    if tensor._lengths is None:  # the public names are operations of autograd
        return Values(tensor._values)
    if not may_wait:
        return None
    spans = zip(tensor._offsets[:-1].tolist(), tensor._lengths.tolist(), strict=True)
    return Values(_joined([tensor._values.narrow(tensor._ragged_idx - 1, *span) for span in spans]))


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def is_masked(tensor: torch.Tensor) -> bool:
    """Whether only some of its elements count."""
    return is_a(tensor, "torch.masked", "MaskedTensor")


def is_dequantized(tensor: torch.Tensor) -> bool:
    """Whether its values are computed from what it stores: torch's quantized dtypes, and subclasses like torchao's."""
    return tensor.is_quantized or type(tensor).dequantize is not torch.Tensor.dequantize


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a strided tensor's elements are in memory; an unknown wrapper's are not, nor are those given back."""
    return not tensor.numel() or bool(storage_address(tensor))
