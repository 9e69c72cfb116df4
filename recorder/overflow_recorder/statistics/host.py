"""Figures of tensors in the host's memory, at once."""

from __future__ import annotations

import torch

from overflow_recorder.statistics.figures import EMPTY, UNKNOWN, Figures, Statistics


def measure(tensor: torch.Tensor, statistics: Statistics) -> Figures:
    """Read the figures of `tensor`.

    Args:
        tensor: Any tensor: any dtype, layout and subclass. Its values are read once; nothing of it is kept.
        statistics: `extrema` or `full`.

    Returns:
        The figures; all None where the values cannot be had. Never raises.
    """
    try:
        return _measure(tensor, statistics)
    except Exception:  # noqa: BLE001 # a tensor that cannot be read has no figures; training goes on
        return UNKNOWN


def _measure(tensor: torch.Tensor, statistics: Statistics) -> Figures:
    with torch.no_grad():
        magnitude = tensor.detach().to(torch.complex128).abs() if tensor.is_complex() else tensor.detach().double().abs()
        if not magnitude.numel():
            return EMPTY[statistics]
        finite = magnitude[magnitude.isfinite()]
        low, high = magnitude.aminmax()
        infinite = magnitude.isinf()
        negative = 0 if tensor.is_complex() else int((infinite & (tensor < 0)).sum())
        figures = Figures(
            float(low),
            float(high),
            float(finite.max()) if finite.numel() else None,
            int(magnitude.isnan().sum()),
            int(infinite.sum()) - negative,
            negative,
        )
        if statistics == "extrema":
            return figures
        smallest = torch.finfo(tensor.dtype).smallest_normal if tensor.dtype.is_floating_point else 0.0
        return figures._replace(
            zero_count=int((magnitude == 0).sum()),
            subnormal_count=int(((magnitude > 0) & (magnitude < smallest)).sum()),
            abs_mean=float(finite.mean()) if finite.numel() else None,
            rms=float(finite.square().mean().sqrt()) if finite.numel() else None,
        )
