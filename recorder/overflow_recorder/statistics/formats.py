"""How each dtype's bits are read: which of them make the magnitude, and where inf and nan begin.

An IEEE float's magnitude orders like its bits without the sign, and so do all the float8 formats. One integer minimum
and maximum over these bits therefore gives abs min, abs max, inf and nan, at the speed of integer vector units and
without a conversion of the elements.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

Array = npt.NDArray[Any]

PIECE_BYTES = 1 << 18
"""Elements are read in pieces of this size: a piece and its magnitudes stay in a core's second-level cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """The bits of one dtype. A magnitude is an integer that orders as the absolute values do."""

    source: np.dtype[Any]
    """The integer dtype under which the tensor's memory is read."""
    magnitude: np.dtype[Any]
    """The integer dtype, as wide, in which magnitudes are compared."""
    magnitudes: Callable[[Array, Array, Format], Array]
    """Called with elements, room for as many magnitudes, and this format; returns the magnitudes."""
    values: Callable[[int, int], tuple[float, float]]
    """The numbers that two finite magnitudes stand for."""
    numbers: Callable[[Array, Array, Format], Array]
    """Called with finite magnitudes, room for as many float64 numbers, and this format; returns the numbers."""
    limit: int
    """The largest finite magnitude; whatever is above it is inf or nan."""
    mask: Array = field(default_factory=lambda: np.zeros((), np.int8))
    """The bits that make the magnitude of a float."""
    infinity: int | None = None
    """The magnitude of inf; None where the format has none."""
    negative_infinity: int | None = None
    """The element that is -inf, as `source` reads it."""
    smallest_normal: int = 0
    """Magnitudes between 0 and this one are subnormal."""
    mantissa_bits: int = 0
    """Width of the stored significand of a float."""
    bias: int = 0
    """Exponent bias of a float."""
    has_zero: bool = True
    """Whether magnitude 0 is the number 0."""


NAN_WITHOUT_NEGATIVE_ZERO = -0x80
"""The only nan of the fnuz formats, as a signed byte: the pattern that is -0 elsewhere."""


def masked(elements: Array, out: Array, form: Format) -> Array:
    """Magnitudes of floats with a sign bit."""
    return np.bitwise_and(elements, form.mask, out)


def masked_without_negative_zero(elements: Array, out: Array, form: Format) -> Array:
    """Magnitudes of the fnuz formats; nan becomes 0x80, above all others."""
    magnitudes = masked(elements, out, form).view(np.uint8)
    if elements.item(elements.argmin()) == NAN_WITHOUT_NEGATIVE_ZERO:
        magnitudes[elements == NAN_WITHOUT_NEGATIVE_ZERO] = 0x80
    return magnitudes


def absolute(elements: Array, out: Array, form: Format) -> Array:
    """Magnitudes of signed integers; the absolute of the lowest one wraps, and is right as an unsigned number."""
    if elements.item(elements.argmin()) >= 0:  # indices, counts: nothing to do
        return elements.view(form.magnitude)
    return np.absolute(elements, out).view(form.magnitude)


def unchanged(elements: Array, out: Array, form: Format) -> Array:  # noqa: ARG001 # same signature as its siblings
    """Unsigned integers are their own magnitudes."""
    return elements


def shifted(magnitudes: Array, room: Array, form: Format) -> Array:
    """Numbers of any float narrower than float64: its bits at float64's place, then the exponent's bias, both exact."""
    bits = room.view(np.int64)
    np.copyto(bits, magnitudes)
    np.left_shift(bits, 52 - form.mantissa_bits, bits)
    return np.multiply(room, math.ldexp(1.0, 1023 - form.bias), room)


def converted(magnitudes: Array, room: Array, form: Format) -> Array:
    """Numbers of integers (64-bit ones are rounded) and of float32, as numpy converts them."""
    np.copyto(room, magnitudes if form.infinity is None else magnitudes.view(np.float32))
    return room


def viewed(magnitudes: Array, room: Array, form: Format) -> Array:  # noqa: ARG001 # same signature as its siblings
    """Numbers of float64: the magnitudes are their bits."""
    return magnitudes.view(np.float64)


def from_exponents(magnitudes: Array, room: Array, form: Format) -> Array:
    """Numbers of float8_e8m0fnu, whose bits are an exponent alone."""
    bits = room.view(np.int64)
    np.add(magnitudes, 1023 - form.bias, bits, dtype=np.int64)
    np.left_shift(bits, 52, bits)
    return room


def _float_value(bits: int, mantissa_bits: int, bias: int) -> float:
    exponent = bits >> mantissa_bits
    if not exponent:
        return math.ldexp(bits, 1 - bias - mantissa_bits)
    return math.ldexp((bits & ((1 << mantissa_bits) - 1)) | 1 << mantissa_bits, exponent - bias - mantissa_bits)


def _float_values(mantissa_bits: int, bias: int) -> Callable[[int, int], tuple[float, float]]:
    return lambda low, high: (_float_value(low, mantissa_bits, bias), _float_value(high, mantissa_bits, bias))


def _struct_values(integer: str, floating: str, shift: int = 0) -> Callable[[int, int], tuple[float, float]]:
    """Four times quicker than arithmetic, for the formats that the struct module knows (bfloat16 as half a float32)."""
    pack, unpack = struct.Struct(integer).pack, struct.Struct(floating).unpack

    def values(low: int, high: int) -> tuple[float, float]:
        return unpack(pack(low << shift, high << shift))

    return values


def _ieee(width: int, mantissa_bits: int, values: Callable[[int, int], tuple[float, float]] | None = None) -> Format:
    exponent_bits = 8 * width - 1 - mantissa_bits
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    bias = (1 << (exponent_bits - 1)) - 1
    signed = np.dtype(f"i{width}")
    return Format(
        source=signed,
        magnitude=signed,
        magnitudes=masked,
        values=values or _float_values(mantissa_bits, bias),
        numbers={4: converted, 8: viewed}.get(width, shifted),
        limit=infinity - 1,
        mask=np.array((1 << (8 * width - 1)) - 1, signed),
        infinity=infinity,
        negative_infinity=infinity - (1 << (8 * width - 1)),
        smallest_normal=1 << mantissa_bits,
        mantissa_bits=mantissa_bits,
        bias=bias,
    )


def _finite_only(mantissa_bits: int, bias: int, *, negative_zero: bool, limit: int = 0x7F, mask: int = 0x7F) -> Format:
    """A float8 without inf: nan is the largest magnitude, or stands where -0 would."""
    return Format(
        source=np.dtype("i1"),
        magnitude=np.dtype("i1" if negative_zero else "u1"),
        magnitudes=masked if negative_zero else masked_without_negative_zero,
        values=_float_values(mantissa_bits, bias),
        numbers=shifted,
        limit=limit,
        mask=np.array(mask, "i1"),
        smallest_normal=1 << mantissa_bits,
        mantissa_bits=mantissa_bits,
        bias=bias,
    )


def _integer(kind: str, width: int) -> Format:
    return Format(
        source=np.dtype(f"{kind}{width}"),
        magnitude=np.dtype(f"u{width}"),
        magnitudes=absolute if kind == "i" else unchanged,
        values=lambda low, high: (float(low), float(high)),
        numbers=converted,
        limit=(1 << (8 * width)) - 1,
    )


FLOAT4 = _finite_only(1, 1, negative_zero=True, limit=7, mask=7)
"""float4_e2m1fn, one value a byte (torch packs two; they are unpacked first)."""

_EXPONENT_ONLY = Format(
    source=np.dtype("u1"),
    magnitude=np.dtype("u1"),
    magnitudes=unchanged,
    values=lambda low, high: (math.ldexp(1.0, low - 127), math.ldexp(1.0, high - 127)),
    numbers=from_exponents,
    limit=0xFE,
    bias=127,
    has_zero=False,
)


_BY_NAME: dict[str, Format] = {
    "float16": _ieee(2, 10, _struct_values("<HH", "<ee")),
    "bfloat16": _ieee(2, 7, _struct_values("<II", "<ff", shift=16)),
    "float32": _ieee(4, 23, _struct_values("<II", "<ff")),
    "float64": _ieee(8, 52, _struct_values("<QQ", "<dd")),
    "float8_e5m2": _ieee(1, 2),
    "float8_e4m3fn": _finite_only(3, 7, negative_zero=True, limit=0x7E),
    "float8_e5m2fnuz": _finite_only(2, 16, negative_zero=False),
    "float8_e4m3fnuz": _finite_only(3, 8, negative_zero=False),
    "float8_e8m0fnu": _EXPONENT_ONLY,
    "bool": _integer("u", 1),
    **{f"uint{8 * width}": _integer("u", width) for width in (1, 2, 4, 8)},
    **{f"int{8 * width}": _integer("i", width) for width in (1, 2, 4, 8)},
}
FORMATS: dict[torch.dtype, Format] = {
    getattr(torch, name): form for name, form in _BY_NAME.items() if hasattr(torch, name)
}
"""Every dtype of this torch whose elements are read straight from memory."""

COMPLEX: dict[torch.dtype, tuple[np.dtype[Any], torch.dtype]] = {
    torch.complex32: (np.dtype("i4"), torch.float16),
    torch.complex64: (np.dtype("c8"), torch.float32),
    torch.complex128: (np.dtype("c16"), torch.float64),
}
"""How a complex element is read from memory, and the dtype of its magnitude."""

FLOAT4_DTYPE: torch.dtype | None = getattr(torch, "float4_e2m1fn_x2", None)
