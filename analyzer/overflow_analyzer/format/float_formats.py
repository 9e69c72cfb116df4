"""The limits of the floating-point formats a trace can name, derived from their widths: no torch is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class FloatFormat:
    """The limits of a floating-point format, as exact float64 values."""

    name: str
    """The dtype's name as torch has it, without ``torch.``."""
    max: float
    """The largest finite value."""
    smallest_normal: float
    """Below it precision is lost bit by bit."""
    smallest_subnormal: float
    """Below half of it a value becomes 0."""
    epsilon: float
    """The distance from 1 to the next larger value."""
    has_inf: bool
    """Whether overflow gives inf. Otherwise it gives nan or ``max``."""

    def bits_left(self, value: float) -> float:
        """Return how many times ``value`` can double before it passes ``max``.

        Args:
            value: A magnitude; 0 can double for ever (inf), inf is infinitely far past the limit (-inf).

        Returns:
            log2(max / value); negative where the value does not fit.
        """
        if math.isnan(value):
            return math.nan
        if value == 0:
            return math.inf
        # A difference of logarithms: the quotient of a subnormal would itself overflow.
        return -math.inf if math.isinf(value) else math.log2(self.max) - math.log2(value)

    def describe(self, value: float) -> str:
        """Return ``value`` against the limit, as ``6.27e+04 is 95.7% of float16's 65504``."""
        share = value / self.max
        part = f"{share:.1%} of" if share < 10 else f"{share:.4g} times"  # noqa: PLR2004  "1000%" is harder to read
        part = "less than 0.1% of" if 0 < share < 0.0005 else part  # noqa: PLR2004  where it would be rounded to 0.0%
        return f"{value:.2e} is {part} {self.name}'s {self.max:g}"


def _derive(
    name: str, exponent_bits: int, mantissa_bits: int, encoding: Literal["ieee", "fn", "fnuz"] = "ieee"
) -> FloatFormat:
    """Derive the limits from the widths.

    ``ieee`` keeps the top exponent for inf and nan. ``fn`` uses it for numbers, all but its last mantissa, which is
    nan. ``fnuz`` uses all of it (nan is where -0 would be) and shifts the bias by one.
    """
    bias = 2 ** (exponent_bits - 1) - (encoding != "fnuz")
    top = 2**exponent_bits - 1 - bias - (encoding == "ieee")
    last_mantissa = 2**mantissa_bits - 1 - (encoding == "fn")
    step = math.ldexp(1.0, -mantissa_bits)
    return FloatFormat(
        name=name,
        max=math.ldexp(1 + last_mantissa * step, top),
        smallest_normal=math.ldexp(1.0, 1 - bias),
        smallest_subnormal=math.ldexp(step, 1 - bias),
        epsilon=step,
        has_inf=encoding == "ieee",
    )


FLOAT_FORMATS: Final[dict[str, FloatFormat]] = {
    one.name: one
    for one in (
        _derive("float16", 5, 10),
        _derive("bfloat16", 8, 7),
        _derive("float32", 8, 23),
        _derive("float64", 11, 52),
        _derive("float8_e4m3fn", 4, 3, "fn"),
        _derive("float8_e4m3fnuz", 4, 3, "fnuz"),
        _derive("float8_e5m2", 5, 2),
        _derive("float8_e5m2fnuz", 5, 2, "fnuz"),
        # Exponents alone: 2**-127 to 2**127, the 256th code is nan, no zero and no subnormals.
        FloatFormat("float8_e8m0fnu", 2.0**127, 2.0**-127, 2.0**-127, 1.0, has_inf=False),
    )
}
"""By dtype name."""

# A complex number is recorded by its magnitude; its parts are what overflows.
_PARTS: Final = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}


def float_format(dtype: str | None) -> FloatFormat | None:
    """Return the format of a dtype by torch's name (a complex one: of its parts); None for integers, unknown ones."""
    return FLOAT_FORMATS.get(_PARTS.get(dtype or "", dtype or ""))
