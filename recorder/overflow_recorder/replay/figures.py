"""The figures of an operand or result, and where in it the non-finite elements lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from overflow_analyzer.format.origin import Place, TensorFigures
from overflow_recorder.statistics import describe, measure
from overflow_recorder.statistics.quiet import quiet

if TYPE_CHECKING:
    from collections.abc import Iterator


def is_float(value: Any) -> bool:
    """Whether a value is a tensor of floating-point or complex elements."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in what an operation was given or returned: its lists are never nested deeply."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def figures_of(tensor: torch.Tensor, name: str, source: str = "") -> TensorFigures:
    """Measure one tensor."""
    what, found = describe(tensor), measure(tensor, "extrema")
    counts = (found.nan_count or 0, found.posinf_count or 0, found.neginf_count or 0)
    return TensorFigures(
        name, source, what.dtype, tuple(what.shape), what.numel, found.abs_max, found.finite_abs_max, *counts
    )


def nonfinite_count(figures: TensorFigures) -> int:
    """Return how many elements are inf or nan."""
    return figures.nan_count + figures.posinf_count + figures.neginf_count


def is_nonfinite(tensor: torch.Tensor) -> bool:
    """Whether any element is inf or nan."""
    found = measure(tensor, "extrema")
    return bool(found.nan_count or found.posinf_count or found.neginf_count)


def place_of(tensor: torch.Tensor) -> Place | None:
    """Say where the non-finite elements lie; None where there are none or the tensor cannot be asked."""
    with quiet():
        try:
            wrong = ~torch.isfinite(tensor)
            count = int(wrong.sum())
            if not count:
                return None
            # By numpy: torch.unravel_index imports sympy, which takes a second.
            first = tuple(map(int, np.unravel_index(int(wrong.flatten().byte().argmax()), wrong.shape)))
            pattern = tuple(_only_index(wrong, dimension) for dimension in range(wrong.dim()))
            covered = 1
            for size, index in zip(wrong.shape, pattern, strict=True):
                covered *= size if index is None else 1
        except (RuntimeError, NotImplementedError, TypeError):
            return None
        return Place(count, wrong.numel(), first, pattern, count == covered)


def _only_index(wrong: torch.Tensor, dimension: int) -> int | None:
    others = [other for other in range(wrong.dim()) if other != dimension]
    present = (wrong.any(dim=others) if others else wrong).nonzero()
    # A dimension of one element says nothing about where.
    return int(present[0]) if len(present) == 1 and wrong.shape[dimension] > 1 else None
