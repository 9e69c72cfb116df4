"""The Triton kernel that reads a tensor's elements once. `kernels` says how to call it and what it leaves."""

# The compiler reads these functions' syntax trees, and would look for the names of Python's types on the device.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# ruff: noqa: ANN001, ANN201, ANN202
# Constants of a kernel are written in capitals.
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

# How an element's bits become its magnitude.
SIGN_MAGNITUDE, NO_NEGATIVE_ZERO, UNSIGNED, UNSIGNED_64, SIGNED, EXPONENT = range(6)

COUNTS = 7
"""Integers that a row begins with: lowest, highest finite, nan, inf, -inf, zeros, subnormals."""

_SIGN_MAGNITUDE: tl.constexpr = tl.constexpr(SIGN_MAGNITUDE)
_NO_NEGATIVE_ZERO: tl.constexpr = tl.constexpr(NO_NEGATIVE_ZERO)
_UNSIGNED_64: tl.constexpr = tl.constexpr(UNSIGNED_64)
_SIGNED: tl.constexpr = tl.constexpr(SIGNED)
_EXPONENT: tl.constexpr = tl.constexpr(EXPONENT)
_COUNTS: tl.constexpr = tl.constexpr(COUNTS)


@triton.jit
def magnitudes_of(bits, KIND: tl.constexpr, MASK: tl.constexpr, WIDE: tl.constexpr):
    """Integers that order as the absolute values do; of integers, shifted so that they fit into int64."""
    integer: tl.constexpr = tl.int64 if WIDE else tl.int32
    if KIND == _SIGN_MAGNITUDE:
        magnitudes = bits.to(integer) & MASK
    elif KIND == _NO_NEGATIVE_ZERO:
        signed = bits.to(integer)
        magnitudes = tl.where(signed == -128, 128, signed & 127)  # noqa: PLR2004 # nan, see formats
    elif KIND == _SIGNED:
        signed = bits.to(integer)
        magnitudes = -1 - tl.where(signed < 0, signed, -signed)  # |x| - 1: the lowest integer's |x| does not fit
    elif KIND == _UNSIGNED_64:
        magnitudes = bits.to(tl.int64, bitcast=True) ^ -(2**63)  # x - 2**63
    else:
        magnitudes = bits.to(integer)
    return magnitudes


@triton.jit
def numbers_of(bits, magnitudes, KIND: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr):
    """The absolute values in float64, exactly (64-bit integers: rounded)."""
    if KIND == _SIGN_MAGNITUDE or KIND == _NO_NEGATIVE_ZERO:  # noqa: SIM109, PLR1714 # the kernel language has no `in`
        scale = tl.full([1], (2046 - BIAS) << 52, tl.int64).to(tl.float64, bitcast=True)  # 2**(1023 - BIAS)
        numbers = (magnitudes.to(tl.int64) << (52 - MANTISSA)).to(tl.float64, bitcast=True) * scale
    elif KIND == _EXPONENT:
        numbers = ((magnitudes.to(tl.int64) + (1023 - BIAS)) << 52).to(tl.float64, bitcast=True)
    else:
        numbers = tl.abs(bits.to(tl.float64))
    return numbers


# A size that is a multiple of 16 is compiled for: only then are 16 bytes loaded at a time.
@triton.jit(do_not_specialize=["offset"])
def figures_kernel(  # one kernel for everything: a second launch would cost more than the arithmetic
    elements,
    rows,
    offset,
    size,
    KIND: tl.constexpr,
    MASK: tl.constexpr,
    LIMIT: tl.constexpr,
    INFINITY: tl.constexpr,
    ZERO: tl.constexpr,
    SMALLEST_NORMAL: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    WIDE: tl.constexpr,
    FULL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Fold the figures of `size` elements into the int64 row that begins at `rows + offset`.

    INFINITY is 0 for a format without inf; LIMIT is 0 for one without inf and nan.
    """
    integer: tl.constexpr = tl.int64 if WIDE else tl.int32
    highest: tl.constexpr = 2**63 - 1 if WIDE else 2**31 - 1
    program = tl.program_id(0)
    low = tl.full([BLOCK], highest, integer)
    high = tl.full([BLOCK], -1 - highest, integer)
    nan = tl.zeros([BLOCK], tl.int32)
    posinf = tl.zeros([BLOCK], tl.int32)
    neginf = tl.zeros([BLOCK], tl.int32)
    zeros = tl.zeros([BLOCK], tl.int32)
    subnormals = tl.zeros([BLOCK], tl.int32)
    total = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    for start in range(program.to(tl.int64) * BLOCK, size, tl.num_programs(0).to(tl.int64) * BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < size
        bits = tl.load(elements + places, mask=inside, other=0)
        magnitudes = magnitudes_of(bits, KIND, MASK, WIDE)
        finite = inside
        if LIMIT:
            finite = inside & (magnitudes <= LIMIT)
            nonfinite = inside & (magnitudes > LIMIT)
            if INFINITY:
                infinite = inside & (magnitudes == INFINITY)
                posinf += (infinite & (bits >= 0)).to(tl.int32)
                neginf += (infinite & (bits < 0)).to(tl.int32)
                nonfinite = nonfinite & (magnitudes != INFINITY)
            nan += nonfinite.to(tl.int32)
        low = tl.minimum(low, tl.where(inside, magnitudes, highest))
        high = tl.maximum(high, tl.where(finite, magnitudes, -1 - highest))
        if FULL:
            zeros += (inside & (magnitudes == ZERO)).to(tl.int32)
            if SMALLEST_NORMAL:
                subnormals += (inside & (magnitudes > ZERO) & (magnitudes < SMALLEST_NORMAL)).to(tl.int32)
            numbers = tl.where(finite, numbers_of(bits, magnitudes, KIND, MANTISSA, BIAS), 0.0)
            total += numbers
            squares += numbers * numbers
    row = rows + offset
    tl.atomic_min(row, tl.min(low, 0).to(tl.int64))
    tl.atomic_max(row + 1, tl.max(high, 0).to(tl.int64))
    if LIMIT:
        _add(row + 2, nan)
        _add(row + 3, posinf)
        _add(row + 4, neginf)
    if FULL:
        _add(row + 5, zeros)
        _add(row + 6, subnormals)
        sums = row + _COUNTS + 2 * program
        tl.store(sums, tl.sum(total, 0).to(tl.int64, bitcast=True))
        tl.store(sums + 1, tl.sum(squares, 0).to(tl.int64, bitcast=True))


@triton.jit
def _add(place, counts):
    """Add up the counts of one program; most tensors have none, and then memory is left alone."""
    count = tl.sum(counts.to(tl.int64), 0)
    if count > 0:
        tl.atomic_add(place, count)
