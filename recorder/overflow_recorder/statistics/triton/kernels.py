"""Figures by one Triton kernel: elements are read once, and nothing of their size is allocated.

A magnitude is an integer that orders as the absolute values do (see `formats`), so extrema and counts are exact and do
not depend on the order in which programs finish. Sums would: each program stores its own, and the host adds them up.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
import triton.language as tl

from overflow_recorder.statistics.figures import Decoder, Figures, Statistics, means, negated, repeated, with_zeros
from overflow_recorder.statistics.formats import (
    FORMATS,
    Array,
    Format,
    absolute,
    from_exponents,
    masked,
    masked_without_negative_zero,
)
from overflow_recorder.statistics.host.extrema import Extremes
from overflow_recorder.statistics.memory import collapse
from overflow_recorder.statistics.triton import kernel

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from overflow_recorder.statistics.values import Values

_BLOCK = 2048  # elements that one program reads at a time
_PROGRAMS: dict[Statistics, int] = {"extrema": 1024, "full": 256}  # sums need room in the row for each program


class TritonKernels:
    """The backend for CUDA and ROCm devices: dense tensors of every dtype but complex and float4.

    A row: int64 lowest and highest finite magnitude, counts of nan, inf, -inf, zeros and subnormals; with full
    statistics two float64 sums for each program.
    """

    def __init__(self, statistics: Statistics) -> None:
        self._full = statistics == "full"
        self._programs = _PROGRAMS[statistics]
        self.columns = kernel.COUNTS + (2 * self._programs if self._full else 0)
        self._constants = {dtype: _constants(form, full=self._full) for dtype, form in FORMATS.items()}
        self._blank: torch.Tensor | None = None

    def reset(self, rows: torch.Tensor) -> None:
        """Programs fold what they find into a row, which therefore begins as that of no element."""
        integers = rows.view(torch.int64)
        integers.zero_()
        integers.select(1, 0).fill_(2**63 - 1)
        integers.select(1, 1).fill_(-(2**63))

    def enqueue(self, values: Values, rows: torch.Tensor, index: int) -> Decoder | None:
        """See `Backend.enqueue`."""
        tensor = values.tensor
        form = FORMATS.get(tensor.dtype)
        if form is None or values.mask is not None or (self._full and tensor.dtype == torch.float64):
            return None  # squares of float64 need to know the largest element beforehand
        sizes, strides, repeats = collapse(tensor.shape, tensor.stride())
        if len(sizes) > 1 or strides[0] != 1:
            return None
        size = sizes[0]
        if tensor.untyped_storage().nbytes() < (tensor.storage_offset() + size) * form.source.itemsize:
            return None  # memory that was given back
        programs = min(self._programs, triton.cdiv(size, _BLOCK))
        pointer = f"*{form.source.name.replace('uint', 'u').replace('int', 'i')}"
        with _current(tensor.device):
            kernel.figures_kernel[(programs,)](
                triton.reinterpret(tensor, tl.str_to_ty(pointer, None).element_ty),
                triton.reinterpret(rows, tl.int64),
                index * rows.stride(0),
                size,
                **self._constants[tensor.dtype],
            )
        return partial(
            _decode,
            form=form,
            size=size,
            repeats=repeats,
            zeros=values.zeros,
            negative=tensor.is_neg(),
            full=self._full,
        )


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, whatever device its arguments are on."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def _kind(form: Format) -> int:
    if form.magnitudes is masked:
        return kernel.SIGN_MAGNITUDE
    if form.magnitudes is masked_without_negative_zero:
        return kernel.NO_NEGATIVE_ZERO
    if form.magnitudes is absolute:
        return kernel.SIGNED
    if form.numbers is from_exponents:
        return kernel.EXPONENT
    return kernel.UNSIGNED_64 if form.source.itemsize == np.dtype(np.uint64).itemsize else kernel.UNSIGNED


def _base(form: Format) -> int:
    """What the kernel's magnitudes are short by."""
    return {kernel.SIGNED: 1, kernel.UNSIGNED_64: 2**63}.get(_kind(form), 0)


def _constants(form: Format, *, full: bool) -> dict[str, Any]:
    kind = _kind(form)
    is_float = kind in {kernel.SIGN_MAGNITUDE, kernel.NO_NEGATIVE_ZERO, kernel.EXPONENT}
    return {
        "KIND": kind,
        "MASK": form.mask.item(),
        "LIMIT": form.limit if is_float else 0,
        "INFINITY": form.infinity or 0,
        "ZERO": -_base(form) if form.has_zero else -1,
        "SMALLEST_NORMAL": form.smallest_normal,
        "MANTISSA": form.mantissa_bits,
        "BIAS": form.bias,
        "WIDE": kind in {kernel.SIGNED, kernel.UNSIGNED_64} or form.limit >= 2**31,
        "FULL": full,
        "BLOCK": _BLOCK,
        "num_warps": 8,
        "enable_fp_fusion": False,  # sums as the host would take them, and no warning about the default's future
    }


def _decode(row: Array, *, form: Format, size: int, repeats: int, zeros: int, negative: bool, full: bool) -> Figures:
    integers = row.view(np.int64)
    low, high, nan, posinf, neginf, zero_count, subnormals = integers[: kernel.COUNTS].tolist()
    finite = size - nan - posinf - neginf
    base = _base(form)
    figures = Extremes(form, low + base, high + base if finite else -1, nan, posinf + neginf, neginf).figures()
    if negative:
        figures = negated(figures)
    if full:
        total, squares = row[kernel.COUNTS :].reshape(-1, 2).sum(0).tolist()
        mean, rms = means(total, squares, finite, figures.finite_abs_max, 0)
        figures = figures._replace(zero_count=zero_count, subnormal_count=subnormals, abs_mean=mean, rms=rms)
    figures = repeated(figures, repeats) if repeats > 1 else figures
    return with_zeros(figures, zeros, size * repeats) if zeros else figures
