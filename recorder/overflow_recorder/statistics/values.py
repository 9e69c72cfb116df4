"""The elements of any tensor: what its wrappers hold, as a strided tensor and zeros that are nowhere stored."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from overflow_recorder.statistics.memory import storage_address

_functorch: Any = torch._C._functorch  # the one place that can look behind a transform's wrappers
_DEPTH = 8  # wrappers in wrappers; more than this is a cycle

is_functorch_wrapped = _functorch.is_functorch_wrapped_tensor
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


class Unwrapped(NamedTuple):
    """A tensor without its wrappers."""

    tensor: torch.Tensor | None
    """The tensor whose elements are measured; None where there are none to be had."""
    notes: tuple[str, ...]
    """What was taken off, or why there are no elements."""


def unwrap(tensor: torch.Tensor) -> Unwrapped:
    """Take off wrappers that hold one tensor (DTensor, functorch); runs no operation on elements.

    Call it under `quiet`, so that reading an attribute runs no user's code.
    """
    notes: list[str] = []
    for _ in range(_DEPTH):
        missing = _missing(tensor)
        if missing is not None:
            return Unwrapped(None, (*notes, f"no values: {missing}"))
        inner, note = _inner(tensor)
        if inner is None:
            return Unwrapped(tensor, tuple(notes))
        if note not in notes:
            notes.append(note)
        tensor = inner
    return Unwrapped(None, (*notes, "no values: wrapped too deeply"))


def _missing(tensor: torch.Tensor) -> str | None:
    """Say why a tensor has no elements, if it has none."""
    if is_a(tensor, "torch._subclasses.fake_tensor", "FakeTensor"):
        return "fake"
    if isinstance(tensor, (UninitializedParameter, UninitializedBuffer)):
        return "uninitialized"
    if tensor.device.type == "meta":
        return "meta"
    if torch._is_functional_tensor(tensor) or is_a(tensor, "torch._subclasses.functional_tensor", "FunctionalTensor"):
        return "functional"
    return None


def _inner(tensor: Any) -> tuple[torch.Tensor | None, str]:
    """The tensor that this one wraps, if it wraps one, and what that says about the figures."""
    if is_functorch_wrapped(tensor):
        return _functorch.get_unwrapped(tensor), "behind a functorch transform"
    if is_a(tensor, "torch.distributed.tensor", "DTensor"):
        return tensor._local_tensor, f"local shard of {tuple(tensor.shape)}"
    return None, ""


def is_a(tensor: torch.Tensor, module: str, name: str) -> bool:
    """Whether `tensor` is an instance of a class whose module may never have been imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(tensor, kind)
